// Reductions: contributions from members to owners, with grants that limit the data under way; and
// the results of a reduce to its root.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "collective/movement.h"
#include "collective/small_operations.h"
#include "protocol/ingress_share.h"
#include "protocol/unasked_account.h"

namespace mcast {

class Reductions final : public Movement {
 public:
  // `unasked` and `ingress` belong to the group, and outlive this.
  Reductions(GroupContext& context, SmallOperations& small, UnaskedAccount& unasked,
             const IngressShare& ingress)
      : g_(context), small_(small), unasked_(unasked), ingress_(ingress) {}

  void start(Operation& op, Nanos now) override;
  void on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now) override;
  bool allowed_early(const Frame& header) override;
  bool pump(Operation& op, Nanos now, bool drained) override;
  bool busy(const Operation& op) const override;
  Nanos deadline(const Operation& op) const override;
  bool complete(const Operation& op) const override;
  void on_complete(Operation& op, Nanos) override { op.reduce->conclude(); }
  bool until_released(const Operation& op) const override { return op.reduce->dealt != nullptr; }
  void drop_memory(Operation& op) override { op.reduce->drop_memory(); }
  bool settled(const Operation& op) const override;
  void give_back(const Operation& op) override;

  // A station folds nothing more of the operation: this owner takes over its outstanding segments.
  void drop_station(Operation& op, uint16_t station);
  // The operation completes without some ranks: continues the folds that wait for them.
  void excuse(Operation& op, const wire::PartialResult& partial);
  // More of our block has become final.
  void contribution_progress(Operation& op);

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
  UnaskedAccount& unasked_;
  const IngressShare& ingress_;
};

}  // namespace mcast
