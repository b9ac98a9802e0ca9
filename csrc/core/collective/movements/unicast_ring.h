// UnicastRing: the unicast path, for networks that block multicast.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "collective/movement.h"
#include "collective/source_auth.h"

namespace mcast {

class UnicastRing final : public Movement {
 public:
  UnicastRing(GroupContext& context, SourceAuth& sources) : g_(context), sources_(sources) {}

  void start(Operation& op, Nanos now) override;
  // The successor has posted the operation.
  void on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now) override;
  bool pump(Operation& op, Nanos now, bool drained) override;
  bool busy(const Operation& op) const override { return !op.local_complete; }
  bool complete(const Operation& op) const override;
  void drop_memory(Operation& op) override { sources_.end(op); }

  // Data of an operation that is posted here, since this member has said so.
  void on_data(const Frame& header, ConstBytes body, Nanos now);

 private:
  Member successor() const { return static_cast<Member>((g_.self + 1u) % g_.size); }
  Member predecessor() const { return static_cast<Member>((g_.self + g_.size - 1u) % g_.size); }
  // True once this member has sent everything it has to forward.
  bool forwarded(const Operation& op) const;
  void list(Operation& op, uint32_t stream) const;
  // Sends one piece of the block. Its first `end` bytes are here.
  void pass_on(Operation& op, uint32_t stream, uint64_t end);

  GroupContext& g_;
  SourceAuth& sources_;
};

}  // namespace mcast
