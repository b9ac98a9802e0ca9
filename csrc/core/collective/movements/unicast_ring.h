// UnicastRing: the unicast path, for networks that block multicast.
//
// Threads: the lane's.
#pragma once

#include "collective/group_context.h"
#include "collective/source_auth.h"

namespace mcast {

class UnicastRing {
 public:
  UnicastRing(GroupContext& context, SourceAuth& sources) : g_(context), sources_(sources) {}

  void start(Operation& op);
  // Returns true if more can be sent at once.
  bool pump(Operation& op);

  using Frame = wire::FrameHeader;
  // The operation must be in flight here; before its post, the frame is kept elsewhere.
  void on_ready(Operation& op, const Frame& header);
  void on_data(const Frame& header, ConstBytes body, Nanos now);

  Member successor() const { return static_cast<Member>((g_.self + 1u) % g_.size); }
  Member predecessor() const { return static_cast<Member>((g_.self + g_.size - 1u) % g_.size); }
  // True once this member has sent everything it has to forward.
  bool forwarded(const Operation& op) const;

 private:
  void list(Operation& op, uint32_t stream) const;
  // Sends one piece of the block. Its first `end` bytes are here.
  void pass_on(Operation& op, uint32_t stream, uint64_t end);

  GroupContext& g_;
  SourceAuth& sources_;
};

}  // namespace mcast
