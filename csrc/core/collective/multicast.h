// Multicast: the own block on its way out, within credit and turn, and the credit that flows for
// all blocks on the control tree.
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

  // The operation's sender, if this member is a root of it; unless small, its turns and credit.
  void start(Operation& op);
  // Sends of the own block what may be sent now. True: more can be sent at once.
  bool pump(Operation& op, Nanos now);
  // Says how far the own block is where others may not know.
  void announce(Operation& op, Nanos now);
  // Reports what has been received, passes on what the subtree has.
  void drive_credit(Operation& op, Nanos now);

  using Frame = wire::FrameHeader;
  // The operation must be in flight here; who has not posted it keeps the frame.
  void on_credit(Operation& op, const Frame& header, std::span<const wire::CreditEntry> entries);
  void on_limit(const Frame& header, ConstBytes body, Nanos now);
  void on_position_frame(const Frame& header, ConstBytes body, Nanos now);

 private:
  // multicast.cpp: the own block
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
  Chunk on_the_way_ = 0;  // what the path holds beside its queue, as the last large block found
  // Scratch, kept to avoid allocation.
  std::vector<wire::CreditEntry> entries_;
  std::vector<std::pair<uint32_t, CreditTree::Least>> changed_;
};

}  // namespace mcast
