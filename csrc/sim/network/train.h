// The unit that moves: up to 64 consecutive packets of one sender to one destination. A train is
// made once and shared by all places where it is under way; at each place a mask gives the packets
// that are left, so that one event moves a whole train and losses are still per packet.
//
// Ownership: TrainRef counts references, not thread-safe; the last one returns the train to its
// pool, which must outlive it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/network/traffic_class.h"
#include "transport/transport.h"

namespace mcast::sim {

using HostId = uint32_t;
using LinkId = uint32_t;
using EndpointId = uint32_t;
inline constexpr uint32_t kNone = 0xffffffff;

// Location of an endpoint: `queue` is the interface's transmit queue that it uses.
struct Place {
  HostId host = 0;
  uint16_t plane = 0;
  uint32_t queue = 0;
};

// The links from one host to another, in order.
struct Route {
  std::array<LinkId, 6> links{};
  uint8_t length = 0;
};

// Describes a train of a stream: which stream, its first segment, and the number and time of this
// transmission. An acknowledgement repeats these and gives the segments that arrived and the one
// below which all did.
struct Stretch {
  uint32_t flow = kNone;
  bool ack = false;
  uint64_t segment = 0, serial = 0;
  Nanos sent = 0;
  uint64_t arrived = 0, received = 0;
};

class TrainPool;

struct Train {
  static constexpr unsigned kMost = 64;

  EndpointId from = kNone;
  TrafficClass what = TrafficClass::kData;
  uint8_t count = 0;      // packets
  uint16_t overhead = 0;  // wire bytes of each packet in addition to its own
  uint32_t wire = 0;      // wire bytes of all packets
  // Destination: `address` by a tree of the fabric's router, or a route.
  MulticastAddress address;
  uint32_t tree = kNone;
  uint8_t root_level = 0;
  uint16_t plane = 0;
  Route route;
  Stretch stream;  // for a train of a stream

  // Packet i is bytes [ends[i - 1], ends[i]) of the train. `bytes` is empty if the contents are not
  // needed.
  std::array<uint32_t, kMost> ends;
  std::vector<std::byte> bytes;
  // Endpoints that a hook has decided about, with its verdict (sim_network.h).
  std::vector<std::pair<EndpointId, uint8_t>> verdicts;

  uint64_t all() const { return count == kMost ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }
  size_t begin_of(unsigned i) const { return i == 0 ? 0 : ends[i - 1]; }
  size_t length_of(unsigned i) const { return ends[i] - begin_of(i); }
  ConstBytes packet(unsigned i) const {
    return ConstBytes(bytes).subspan(begin_of(i), length_of(i));
  }
  void add(size_t length) {
    ends[count] = static_cast<uint32_t>((count == 0 ? 0 : ends[count - 1]) + length);
    count++;
    wire += static_cast<uint32_t>(length) + overhead;
  }
  // Wire bytes of the packets in `mask`.
  uint32_t wire_of(uint64_t mask) const {
    if (mask == all()) return wire;
    size_t sum = 0;
    for (uint64_t left = mask; left != 0; left &= left - 1) {
      sum += length_of(static_cast<unsigned>(std::countr_zero(left))) + overhead;
    }
    return static_cast<uint32_t>(sum);
  }

 private:
  friend class TrainRef;
  friend class TrainPool;
  uint32_t refs_ = 0;
  TrainPool* pool_ = nullptr;
};

class TrainRef {
 public:
  TrainRef() = default;
  TrainRef(const TrainRef& other) : train_(other.train_) {
    if (train_ != nullptr) train_->refs_++;
  }
  TrainRef(TrainRef&& other) noexcept : train_(std::exchange(other.train_, nullptr)) {}
  TrainRef& operator=(TrainRef other) noexcept {
    std::swap(train_, other.train_);
    return *this;
  }
  ~TrainRef();

  explicit operator bool() const { return train_ != nullptr; }
  Train& operator*() const { return *train_; }
  Train* operator->() const { return train_; }

 private:
  friend class TrainPool;
  explicit TrainRef(Train* train) : train_(train) { train_->refs_++; }
  Train* train_ = nullptr;
};

class TrainPool {
 public:
  // An empty train; it reuses the memory of an earlier one.
  TrainRef make() {
    if (free_.empty()) {
      all_.push_back(std::make_unique<Train>());
      all_.back()->pool_ = this;
      free_.reserve(all_.capacity());  // giving back allocates nothing
      free_.push_back(all_.back().get());
    }
    Train* const train = free_.back();
    free_.pop_back();
    return TrainRef(train);
  }
  // Number of trains in use; 0 when nothing is under way.
  size_t used() const { return all_.size() - free_.size(); }

 private:
  friend class TrainRef;
  void give_back(Train& train) {
    train.count = 0;
    train.wire = 0;
    train.what = TrafficClass::kData;
    train.tree = kNone;
    train.stream = {};
    train.bytes.clear();
    train.verdicts.clear();
    free_.push_back(&train);
  }

  std::vector<std::unique_ptr<Train>> all_;
  std::vector<Train*> free_;
};

inline TrainRef::~TrainRef() {
  if (train_ != nullptr && --train_->refs_ == 0) train_->pool_->give_back(*train_);
}

}  // namespace mcast::sim
