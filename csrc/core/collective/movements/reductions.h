// Reductions: contributions from members to owners, with grants that limit the data under way; and
// the results of a reduce to its root.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "collective/small_operations.h"
#include "protocol/ingress_share.h"
#include "protocol/unasked_account.h"

namespace mcast {

class Reductions {
 public:
  Reductions(GroupContext& context, SmallOperations& small)
      : g_(context), small_(small), unasked_(context.size), ingress_(context.params.policy) {}

  // Grants, offers, sends and folds as much as the limits allow. Returns true if more can be done
  // at once.
  bool pump(Operation& op, Nanos now);
  bool complete(const Operation& op) const;
  // Measures the multicast lane's traffic since the last call, to which grants yield.
  void measure_ingress(Nanos now);

  using Frame = wire::FrameHeader;
  // The operation must be in flight here; before its post, the frame is kept elsewhere if
  // allowed_early().
  void on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now);
  // Whether a correct member may send this before our post. Fails the group if not.
  bool allowed_early(const Frame& header);

  // A station folds nothing more of the operation: this owner takes over its outstanding segments.
  void drop_station(Operation& op, uint16_t station);
  // The operation completes without some ranks: continues the folds that wait for them.
  void excuse(Operation& op, const wire::PartialResult& partial);
  // More of our block has become final.
  void contribution_progress(Operation& op);

  // Shared with exchanges.
  UnaskedAccount& unasked() { return unasked_; }
  const IngressShare& ingress() const { return ingress_; }

  // The operation leaves the queue: stops charging for its unasked contributions.
  void give_back(const Operation& op);

 private:
  void send_contributions(Operation& op, bool& more, Nanos now);
  void send_result(Operation& op, bool& more);
  void offer_input(Operation& op);
  void settle_inputs(Operation& op, Nanos now);
  void contribute_own(Operation& op, bool& more);
  void publish_result(Operation& op);
  // reduce_grants.cpp
  void grant_segments(Operation& op);
  void send_grant(Operation& op);
  void announce_diverted(Operation& op);
  // reduce_frames.cpp
  void on_offer(Operation& op, const Frame& header, ConstBytes body);
  void on_taken(Operation& op, const Frame& header, ConstBytes body);
  void on_grant(Operation& op, const Frame& header, ConstBytes body);
  void on_divert(Operation& op, const Frame& header, ConstBytes body);
  void on_data(Operation& op, const Frame& header, ConstBytes body);
  void on_result(Operation& op, const Frame& header, ConstBytes body);

  GroupContext& g_;
  SmallOperations& small_;
  UnaskedAccount unasked_;
  IngressShare ingress_;
};

}  // namespace mcast
