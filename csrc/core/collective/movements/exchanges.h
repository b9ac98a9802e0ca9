// Exchanges: all_to_all, gather and scatter. Each block goes directly from one rank to another.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "protocol/ingress_share.h"
#include "protocol/unasked_account.h"

namespace mcast {

class Exchanges {
 public:
  // `unasked` and `ingress` belong to the lane, are shared with reductions, and outlive this.
  Exchanges(GroupContext& context, UnaskedAccount& unasked, const IngressShare& ingress)
      : g_(context), unasked_(unasked), ingress_(ingress) {}

  // Called at the post: sends the pieces that need no grant.
  void begin(Operation& op, Nanos now) { (void)send_pieces(op, now); }
  // Grants and sends as much as the limits allow. Returns true if more can be done at once.
  bool pump(Operation& op, Nanos now);

  using Frame = wire::FrameHeader;
  // The operation must be in flight here; before its post, the frame is kept elsewhere.
  void on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now);

  // The operation leaves the queue: stops charging for the bytes that it sent without a grant.
  void give_back(const Operation& op);

 private:
  void grant_pieces(Operation& op);
  bool send_pieces(Operation& op, Nanos now);
  using Verdict = BlockExchange::Verdict;
  void differ(const Operation& op, Member from, uint64_t sent, Member to, uint64_t expected);
  void on_grant(Operation& op, const Frame& header, ConstBytes body);
  void on_data(Operation& op, const Frame& header, ConstBytes body);

  GroupContext& g_;
  UnaskedAccount& unasked_;
  const IngressShare& ingress_;
};

}  // namespace mcast
