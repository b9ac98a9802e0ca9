// Frames for a group that this rank has not made yet, because its peers may be ahead after the
// rendezvous. They are stored, within a limit for each peer, and replayed in the poll after the
// group was added. A frame is never repeated, so a frame that found no room fails its group, by
// name, if that group is ever made.
#include <algorithm>
#include <utility>

#include "base/coverage.h"
#include "runtime/lane.h"

namespace mcast {
namespace {
constexpr size_t kOrphanCost = 64;  // overhead of a stored frame, bytes
constexpr size_t kLostTags = 8;  // remembered of a peer; if there are more, any group may be meant
// Ranks make a group within moments of each other; older frames belong to a group that was never
// made.
constexpr Nanos kOrphanAge = 60 * kSecond;
}  // namespace

void Lane::age(Early& early) {
  while (!early.frames.empty() && now_ - early.frames.front().at >= kOrphanAge) {
    early.bytes -= early.frames.front().frame.size() + kOrphanCost;
    MCAST_COVER(frame_without_its_group);
    early.frames.pop_front();
    monitor_.note(Cause::foreign, {}, now_);
  }
  if (early.dropped != kNever && now_ - early.dropped >= kOrphanAge) {
    early.dropped = kNever;
    early.lost.clear();
  }
}

// The cost depends on the frames of this peer only.
void Lane::keep_orphan(uint64_t tag, PeerId peer, ConstBytes frame) {
  if (others_.closed(tag)) {
    seen_.late++;
    return;
  }
  Early& early = early_[peer];
  age(early);
  const size_t cost = frame.size() + kOrphanCost;
  if (early.bytes + cost <= kEarlyBytes) {
    MCAST_COVER(frame_before_its_group);
    early.frames.push_back({tag, {frame.begin(), frame.end()}, now_});
    early.bytes += cost;
    return;
  }
  // A frame is never repeated: if the group is made, it must not wait for this one.
  monitor_.note(Cause::foreign, {}, now_);
  early.dropped = now_;
  const bool known = std::find(early.lost.begin(), early.lost.end(), tag) != early.lost.end();
  if (!known && early.lost.size() < kLostTags) early.lost.push_back(tag);
}

// In a poll, not in add_group(): the caller has had time to start the probe.
void Lane::replay_orphans() {
  for (const uint64_t tag : std::exchange(fresh_, {})) {
    std::vector<std::pair<PeerId, Orphan>> taken;
    for (auto& [peer, early] : early_) {
      for (Orphan& o : early.frames) {
        if (o.tag != tag) continue;
        early.bytes -= o.frame.size() + kOrphanCost;
        taken.emplace_back(peer, std::move(o));
        o.frame.clear();
      }
      std::erase_if(early.frames, [tag](const Orphan& o) { return o.tag == tag; });
    }
    std::erase_if(early_, [](const auto& entry) {
      return entry.second.frames.empty() && entry.second.dropped == kNever;
    });
    for (const auto& [peer, o] : taken) {
      LaneGroup* const group = find_group(tag);
      wire::FrameHeader header;
      if (group != nullptr && wire::parse_frame(o.frame, header)) {
        dispatch(*group, peer, header, o.frame);
      }
    }
  }
}

// The group has just been added. It would wait in vain for lost frames of its members.
void Lane::fail_overrun(LaneGroup& group) {
  const uint64_t tag = group.core_.params().tag;
  for (size_t m = 0; m < group.peers_.size(); m++) {
    const auto it = early_.find(group.peers_[m]);
    if (it == early_.end()) continue;
    age(it->second);
    if (it->second.dropped == kNever) continue;
    const std::vector<uint64_t>& lost = it->second.lost;
    const bool named = std::find(lost.begin(), lost.end(), tag) != lost.end();
    if (!named && lost.size() < kLostTags) continue;
    group.core_.fail_later(Status(Code::kResourceExhausted,
                                  "rank " + std::to_string(m) + " sent more than " +
                                      std::to_string(kEarlyBytes >> 10) +
                                      " KiB before this rank had the group, and the rest is lost; "
                                      "make groups in the same order on all ranks"),
                           now_);
  }
}

}  // namespace mcast
