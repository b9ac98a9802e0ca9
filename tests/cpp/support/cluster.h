// A cluster in virtual time: N lanes over one simulated network, driven by one loop. Every op's memory
// is checked byte for byte, with guard bytes around each region.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/lane.h"
#include "transport/sim/sim_network.h"

namespace mcast::test {

inline std::byte pattern(uint64_t op, uint32_t root, size_t i) {
  const uint64_t x = op * 1000003 + root * 7919u + i * 31 + (i >> 8) * 17;
  return static_cast<std::byte>(x ^ (x >> 11));
}

// Memory with 64 guard bytes on either side.
class Guarded {
 public:
  explicit Guarded(size_t size) : bytes_(size + 128, std::byte{0xA5}), size_(size) {}
  std::byte* data() { return bytes_.data() + 64; }
  size_t size() const { return size_; }
  bool intact() const {
    for (size_t i = 0; i < 64; i++) {
      if (bytes_[i] != std::byte{0xA5} || bytes_[64 + size_ + i] != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t size_;
};

// One op at one rank: its memory and its result.
struct OpRun {
  wire::Kind kind = wire::Kind::kBarrier;
  uint64_t id = 0;  // seeds the pattern
  Member root = 0;
  Member rank = 0;
  size_t block = 0;
  std::shared_ptr<Guarded> memory;
  int calls = 0;
  Status status;
  Nanos done_at = 0;

  bool done() const { return calls > 0; }
  // "" or what is wrong with the bytes.
  std::string check(uint32_t size) const;
};

struct ClusterOptions {
  uint32_t ranks = 4;
  SimOptions net;
  GroupParams group;  // self, tag and agreed.members are filled in
  bool probe = true;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);

  SimNetwork& net() { return net_; }
  Nanos now() const { return now_; }
  uint32_t size() const { return options_.ranks; }
  Lane& lane(Member r) { return *lanes_[r]; }
  // Group `g` (0 is made by the constructor).
  LaneGroup& group(Member r, size_t g = 0) { return *groups_[g][r]; }
  // Another group over the same endpoints; returns its index.
  size_t add_group(const GroupParams& params);

  std::shared_ptr<OpRun> broadcast(Member rank, Member root, size_t bytes, uint64_t id,
                                   Nanos timeout = kNever, size_t g = 0);
  std::shared_ptr<OpRun> allgather(Member rank, size_t block, uint64_t id, Nanos timeout = kNever,
                                   size_t g = 0);
  std::shared_ptr<OpRun> barrier(Member rank, Nanos timeout = kNever, size_t g = 0);

  // Drives everything until `until()` or `limit` of virtual time passes; returns until(). A paused
  // rank's lane is not polled (a stopped process).
  template <typename Until>
  bool run(Until until, Nanos limit = 60 * kSecond);
  void run_for(Nanos time) {
    const Nanos end = now_ + time;
    run([&] { return now_ >= end; }, time + 1);
  }
  void pause(Member r, bool paused) { paused_[r] = paused; }

  uint64_t total(Counter c, size_t g = 0) const;

 private:
  void step();
  Nanos next_time() const;
  std::shared_ptr<OpRun> post(Member rank, std::shared_ptr<OpRun> run, wire::Descriptor descriptor,
                              Nanos timeout, size_t g);

  ClusterOptions options_;
  SimNetwork net_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::vector<LaneGroup*>> groups_;
  std::vector<bool> paused_;
  Nanos now_ = kMilli;
  bool busy_ = false;
};

template <typename Until>
bool Cluster::run(Until until, Nanos limit) {
  const Nanos end = now_ + limit;
  // The event count bounds a run whose virtual time does not move.
  for (uint64_t turns = 0; turns < 20'000'000; turns++) {
    if (until()) return true;
    if (now_ > end) return false;
    step();
  }
  return false;
}

}  // namespace mcast::test
