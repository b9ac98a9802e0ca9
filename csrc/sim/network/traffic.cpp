// Sums over links for reports: one pass, by class of link, keeping the fullest link of each class.
// When time goes beyond the last bin, pairs of bins are merged, so that half as many are used.
#include "sim/network/traffic.h"

#include <algorithm>

namespace mcast::sim {

const char* traffic_class_name(TrafficClass what) noexcept {
  static constexpr const char* kNames[kTrafficClasses] = {
      "data", "background", "position", "probe", "control", "repair", "reduce", "ring", "ack"};
  return kNames[static_cast<size_t>(what)];
}

void Timeline::widen() {
  for (Bins& bins : bins_) {
    for (size_t i = 0; i < kBins; i++) {
      bins[i] = 2 * i < kBins ? bins[2 * i] + bins[2 * i + 1] : 0;
    }
  }
  width_ *= 2;
}

std::vector<ClassTraffic> sum_by_class(const Topology& topology,
                                       const std::vector<LinkTraffic>& links) {
  std::vector<ClassTraffic> classes(2 * topology.levels());
  for (LinkId id = 0; id < links.size(); id++) {
    const LinkTraffic& link = links[id];
    ClassTraffic& into = classes[Topology::link_class(topology.link(id))];
    into.links++;
    for (size_t c = 0; c < kTrafficClasses; c++) into.sum.of[c] += link.of[c];
    into.sum.lost_full += link.lost_full;
    into.sum.lost_fault += link.lost_fault;
    into.sum.marked += link.marked;
    into.sum.peak_waiting = std::max(into.sum.peak_waiting, link.peak_waiting);
    const uint64_t bytes = link.all().bytes;
    if (into.hottest == kNone || bytes > into.most_bytes) {
      into.hottest = id;
      into.most_bytes = bytes;
    }
  }
  return classes;
}

}  // namespace mcast::sim
