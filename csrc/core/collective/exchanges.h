// Exchanges: all_to_all, gather and scatter, block by block from the one rank to the other.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "protocol/ingress_share.h"
#include "protocol/unasked_account.h"

namespace mcast {

class Exchanges {
 public:
  // `unasked`, `ingress`: the lane's, which reductions use as well; they outlive this.
  Exchanges(GroupContext& context, UnaskedAccount& unasked, const IngressShare& ingress)
      : g_(context), unasked_(unasked), ingress_(ingress) {}

  // At the post: sends what needs no grant.
  void begin(Operation& op, Nanos now) { (void)send_pieces(op, now); }
  // Grants and sends what may be. True: more can be done at once.
  bool pump(Operation& op, Nanos now);

  using Frame = wire::FrameHeader;
  // The operation must be in flight here; who has not posted it keeps the frame.
  void on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now);

  // The operation leaves the queue: what it has sent unasked is no longer charged.
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
