// Exchanges: all_to_all, gather and scatter. Each block goes directly from one rank to another.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "collective/movement.h"
#include "protocol/ingress_share.h"
#include "protocol/unasked_account.h"

namespace mcast {

class Exchanges final : public Movement {
 public:
  // `unasked` and `ingress` belong to the group, and outlive this.
  Exchanges(GroupContext& context, UnaskedAccount& unasked, const IngressShare& ingress)
      : g_(context), unasked_(unasked), ingress_(ingress) {}

  void start(Operation& op, Nanos now) override;
  // Sends the pieces that need no grant before the call returns.
  void begin(Operation& op, Nanos now) override { (void)send_pieces(op, now); }
  void on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now) override;
  bool pump(Operation& op, Nanos now, bool drained) override;
  bool busy(const Operation& op) const override { return !op.local_complete; }
  bool complete(const Operation& op) const override { return op.exchange->complete(); }
  bool urgent(const Operation&) const override { return unasked_.filling(); }
  void drop_memory(Operation& op) override { op.exchange->drop_memory(); }
  // The account gets its bytes back with the release.
  bool settled(const Operation&) const override { return false; }
  void give_back(const Operation& op) override;

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
