// Traffic of each direction of each link, by class, and its losses. Wire bytes: headers, preamble
// and gap included. A packet that a full queue refused never was on the link; one that a random
// fault took used its time on the link. Threads: one.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "sim/network/topology.h"

namespace mcast::sim {

struct Amount {
  uint64_t bytes = 0, packets = 0;
  Amount& operator+=(const Amount& other) {
    bytes += other.bytes;
    packets += other.packets;
    return *this;
  }
};

using AmountByClass = std::array<Amount, kTrafficClasses>;

struct LinkTraffic {
  AmountByClass of;
  uint64_t lost_full = 0, lost_fault = 0;  // packets
  uint64_t marked = 0;
  double peak_waiting = 0;  // bytes

  Amount all() const {
    Amount sum;
    for (const Amount& amount : of) sum += amount;
    return sum;
  }
};

// Sums over links of one kind, for tables.
struct ClassTraffic {
  LinkTraffic sum;  // its peak is the highest
  uint64_t links = 0, most_bytes = 0;
  LinkId hottest = kNone;
};

// Bytes by class of link over time, in bins that double their width whenever the run outgrows them:
// for any duration, between half of the bins and all of them are used.
class Timeline {
 public:
  static constexpr size_t kBins = 200;
  using Bins = std::array<uint64_t, kBins>;

  // `begin`: start of the first bin; earlier traffic is left out.
  Timeline(size_t link_classes, Nanos begin)
      : bins_(link_classes), begin_(static_cast<double>(begin)) {}

  void add(size_t link_class, double at, uint64_t bytes) {
    double bin = (at - begin_) / width_;
    if (bin < 0) return;
    for (; bin >= kBins; bin /= 2) widen();
    bins_[link_class][static_cast<size_t>(bin)] += bytes;
  }
  double width() const { return width_; }  // ns
  const std::vector<Bins>& bins() const { return bins_; }

 private:
  void widen();

  std::vector<Bins> bins_;  // by Topology::link_class()
  double begin_, width_ = 1000;
};

// Indexed by Topology::link_class().
std::vector<ClassTraffic> sum_by_class(const Topology& topology,
                                       const std::vector<LinkTraffic>& links);

}  // namespace mcast::sim
