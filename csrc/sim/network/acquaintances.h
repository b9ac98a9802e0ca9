// Tracks which peers an endpoint knows, so that ends are reported as over sockets: an endpoint is
// not notified of the end of a process to which it has no connection. If it has not used a
// connected peer itself, it only learns that a stranger is gone; if it turns to that process later,
// it learns of the end then. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace mcast::sim {

class Acquaintances {
 public:
  enum class Known : uint8_t { kNot, kHeard, kMet };
  Known of(size_t peer) const { return peer < known_.size() ? known_[peer] : Known::kNot; }

  // A frame of the peer arrived.
  void hear(size_t peer) {
    if (of(peer) == Known::kNot) set(peer, Known::kHeard);
  }
  // The peer was added, expected or sent to. Returns how it has ended before, if it has: gracefully
  // or not.
  std::optional<bool> meet(size_t peer) {
    if (of(peer) == Known::kMet) return std::nullopt;
    set(peer, Known::kMet);
    const auto ended = unmet_.extract(peer);
    return ended.empty() ? std::nullopt : std::optional<bool>(ended.mapped());
  }
  // A peer that is not met has ended.
  void keep_end(size_t peer, bool graceful) { unmet_[peer] = graceful; }

 private:
  void set(size_t peer, Known how) {
    if (peer >= known_.size()) known_.resize(peer + 1, Known::kNot);
    known_[peer] = how;
  }

  std::vector<Known> known_;
  std::unordered_map<size_t, bool> unmet_;
};

}  // namespace mcast::sim
