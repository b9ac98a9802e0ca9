// Multicast: sends this member's block, as its turn among the roots and credit allow, and handles
// the credit of all blocks on the control tree.
//
// Threads: the lane's.
#pragma once

#include <vector>

#include "collective/group_context.h"
#include "collective/reception.h"
#include "collective/small_operations.h"
#include "collective/source_auth.h"

namespace mcast {

class Multicast {
 public:
  Multicast(GroupContext& context, SmallOperations& small, Reception& reception,
            SourceAuth& sources)
      : g_(context), small_(small), reception_(reception), sources_(sources) {}

  // Makes the operation's sender if this member is a root. Unless small, also sets up turns and
  // credit.
  void start(Operation& op);
  // Sends as much of this member's block as credit and window allow. Returns true if more could be
  // sent immediately.
  bool pump(Operation& op, Nanos now);
  // Announces the position of this member's block if others may not know it.
  void announce(Operation& op, Nanos now);
  // Reports received chunks, and forwards the reports of the subtree.
  void drive_credit(Operation& op, Nanos now);

  using Frame = wire::FrameHeader;
  // The operation must be in flight here; before its post, the frame is kept elsewhere.
  void on_credit(Operation& op, const Frame& header, std::span<const wire::CreditEntry> entries);
  void on_limit(const Frame& header, ConstBytes body, Nanos now);
  void on_position_frame(const Frame& header, ConstBytes body, Nanos now);

 private:
  // multicast.cpp: this member's block
  bool my_turn(Operation& op, Nanos now);
  uint32_t earlier_blocks(const Operation& op) const;
  bool near_end(const Operation& op, uint32_t stream) const;
  void keep_in_step(Operation& op, Nanos now);
  void count(Operation& op);
  void pass_on_position(Operation& op, uint32_t stream, Chunk sent, Member from);
  // multicast_credit.cpp
  void start_credit(Operation& op);
  void report_credit(Operation& op, bool first);
  void route_limits(Operation& op, std::span<const wire::CreditEntry> entries, Nanos now);
  void send_credit(Member to, wire::FrameType type, const Operation& op,
                   std::span<const wire::CreditEntry> entries);

  GroupContext& g_;
  SmallOperations& small_;
  Reception& reception_;
  SourceAuth& sources_;
  // Chunks that the path holds besides its queue, as measured by the last large block.
  Chunk on_the_way_ = 0;
  // Scratch, kept to avoid allocation.
  std::vector<wire::CreditEntry> entries_;
  std::vector<std::pair<uint32_t, CreditTree::Least>> changed_;
};

}  // namespace mcast
