// Frames for operations that this rank has not posted yet: a rank that is ahead may send its
// credit, its description, the start signal of a ring, and the unasked data of a reduction. They
// are stored here and handled as if they had arrived right after the post. The store is bounded per
// sender, including the overhead of each frame. Pure.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "base/types.h"
#include "protocol/unasked_account.h"
#include "wire/frame.h"

namespace mcast {

class EarlyFrames {
 public:
  // Limits per sender, in bytes: more than any correct member sends. Reductions and exchanges are
  // limited by their senders' accounts. Control frames of an operation are small and bounded by how
  // many operations a rank can be ahead; the limit is for a member that breaks the protocol.
  static constexpr size_t kMostReductions = 256u << 10;
  static constexpr size_t kMostControl = 64u << 20;

  struct Kept {
    wire::FrameHeader header;
    std::vector<std::byte> body;
  };

  explicit EarlyFrames(uint32_t members) : held_(members) {}

  // Returns false, and keeps nothing, if the member has sent more than it may.
  bool keep(const wire::FrameHeader& header, ConstBytes body) {
    const size_t cost = early_cost(body.size());
    const size_t kind = accounted(header.type);
    size_t& held = held_[header.member][kind];
    if (held + cost > (kind != 0 ? kMostReductions : kMostControl)) return false;
    held += cost;
    frames_[header.sequence].push_back({header, {body.begin(), body.end()}});
    return true;
  }
  // Removes and returns the frames of one operation, in the order in which they arrived.
  std::vector<Kept> take(Sequence sequence) {
    const auto it = frames_.find(sequence);
    if (it == frames_.end()) return {};
    std::vector<Kept> frames = std::move(it->second);
    frames_.erase(it);
    for (const Kept& k : frames) {
      held_[k.header.member][accounted(k.header.type)] -= early_cost(k.body.size());
    }
    return frames;
  }
  // Bytes charged to frames of reductions and exchanges from this member.
  size_t held_reductions(Member from) const { return held_[from][1]; }

 private:
  static constexpr bool accounted(wire::FrameType type) {
    return wire::is_reduction(type) || wire::is_exchange(type);
  }

  std::map<Sequence, std::vector<Kept>> frames_;
  std::vector<std::array<size_t, 2>> held_;  // by sender: control, reductions and exchanges
};

}  // namespace mcast
