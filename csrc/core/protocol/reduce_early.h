// Reductions, before a rank has made the call: what others may send to it all the same, and where
// that waits. Both sides charge a frame alike, with what keeping it costs besides its bytes, so a
// sender that stays within its account cannot overflow the store, however small its frames are.
// Pure.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"
#include "wire/frame.h"

namespace mcast {

// Bytes that a frame with such a body is charged: the rest is about what its header, its buffer and
// its places in the store take.
constexpr size_t early_cost(size_t body) { return body + 128; }

// A contributor's account: unasked contributions of operations that are not released, by owner.
class UnaskedAccount {
 public:
  // Cost per owner, bytes. More only for the oldest operation of all that are not released: those
  // behind it give nothing back before it is over, so it must not wait for them.
  static constexpr size_t kMost = 64u << 10;

  explicit UnaskedAccount(uint32_t members) : charged_(members), waiting_(members, kNobody) {}

  // Whether the contribution of operation `sequence` may be sent. Once it may not, later ones may
  // not either, until it has been: small ones would take all that becomes free from a larger one.
  bool room(Member owner, Sequence sequence, size_t cost, bool oldest) {
    if (oldest) return true;
    if (waiting_[owner] < sequence) return false;
    if (charged_[owner] + cost <= kMost) return true;
    waiting_[owner] = sequence;
    return false;
  }
  void charge(Member owner, Sequence sequence, size_t cost) {
    charged_[owner] += cost;
    if (waiting_[owner] == sequence) waiting_[owner] = kNobody;
  }
  // The operation is released.
  void give_back(Member owner, size_t cost) { charged_[owner] -= cost; }
  size_t charged(Member owner) const { return charged_[owner]; }

 private:
  static constexpr Sequence kNobody = UINT32_MAX;
  std::vector<size_t> charged_;
  std::vector<Sequence> waiting_;  // the first operation that found no room
};

// Frames for operations that this rank has not posted.
class EarlyReductions {
 public:
  // Cost per member that sends, bytes: more than any may have sent.
  static constexpr size_t kMost = 256u << 10;

  struct Kept {
    wire::FrameHeader header;
    std::vector<std::byte> body;
  };

  explicit EarlyReductions(uint32_t members) : held_(members) {}

  // False, and nothing is kept: the member has sent more than it may.
  bool keep(const wire::FrameHeader& header, ConstBytes body) {
    const size_t cost = early_cost(body.size());
    if (held_[header.member] + cost > kMost) return false;
    held_[header.member] += cost;
    frames_[header.sequence].push_back({header, {body.begin(), body.end()}});
    return true;
  }
  // Those of one operation, in the order in which they came; they are not held any more.
  std::vector<Kept> take(Sequence sequence) {
    const auto it = frames_.find(sequence);
    if (it == frames_.end()) return {};
    std::vector<Kept> frames = std::move(it->second);
    frames_.erase(it);
    for (const Kept& k : frames) held_[k.header.member] -= early_cost(k.body.size());
    return frames;
  }
  size_t held(Member from) const { return held_[from]; }

 private:
  std::map<Sequence, std::vector<Kept>> frames_;
  std::vector<size_t> held_;
};

}  // namespace mcast
