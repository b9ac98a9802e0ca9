// Sums up a fabric's links for a result: by class and direction, by host, the link that sends for
// the largest share of the time, and by rank.
#include "sim/world/result.h"

#include <algorithm>

namespace mcast::sim {
namespace {

// "h17", "leaf 3", "spine 2", "core 5".
std::string node_name(const Topology& topology, const Link& link, bool upper) {
  const std::string kind = topology.class_name(link);  // "leaf-spine up"
  const size_t dash = kind.find('-'), blank = kind.find(' ');
  if (upper) {
    const Switch s = topology.upper(link);
    const uint32_t number = s.block * topology.columns(s.level) + s.column;
    return kind.substr(dash + 1, blank - dash - 1) + " " + std::to_string(number);
  }
  if (link.level == 1) return "h" + std::to_string(link.child);
  const Switch s = topology.lower(link);
  const uint32_t number = s.block * topology.columns(s.level) + s.column;
  return kind.substr(0, dash) + " " + std::to_string(number);
}

void account_hosts(const Topology& topology, const std::vector<LinkTraffic>& traffic,
                   const std::vector<HostId>& aggregators, OpResult* result) {
  double up = 0, down = 0;
  for (LinkId id = 0; id < topology.links(); id++) {
    const Link& link = topology.link(id);
    if (link.level > 1) continue;
    const uint64_t bytes = traffic[id].all().bytes;
    if (std::binary_search(aggregators.begin(), aggregators.end(), link.child)) {
      (link.up ? result->aggregator.up : result->aggregator.down) +=
          static_cast<double>(bytes) / static_cast<double>(aggregators.size());
      result->aggregator.most = std::max(result->aggregator.most, bytes);
    } else {
      (link.up ? up : down) += static_cast<double>(bytes);
    }
    if (!link.up) continue;
    for (size_t c = 0; c < kTrafficClasses; c++) result->sent[c] += traffic[id].of[c];
  }
  const auto hosts = static_cast<double>(topology.hosts() - aggregators.size());
  result->host_up = up / hosts;
  result->host_down = down / hosts;
}

void account_arrivals(const Fabric& fabric, Nanos start, OpResult* result) {
  Nanos first = kNever, last = start;
  for (const TrafficClass what :
       {TrafficClass::kData, TrafficClass::kRing, TrafficClass::kReduce}) {
    const ArrivalTimes& times = fabric.arrivals(what);
    if (times.first == kNever) continue;
    first = std::min(first, times.first);
    last = std::max(last, times.last);
  }
  for (OpTimes& op : result->ops) {
    op.first_byte = first == kNever ? 0 : first - start;
    op.last_byte = last - start;
  }
}

}  // namespace

Nanos OpResult::took() const {
  Nanos last = 0;
  for (const OpTimes& op : ops) last = std::max(last, op.time);
  return last;
}

std::string link_name(const Topology& topology, LinkId id) {
  const Link& link = topology.link(id);
  std::string name;
  if (link.level == 1) {
    name = node_name(topology, link, false) + (link.up ? " up" : " down");
  } else {
    name = node_name(topology, link, !link.up) + " to " + node_name(topology, link, link.up);
  }
  if (link.plane > 0) name += " of plane " + std::to_string(link.plane);
  return name;
}

void account_ranks(const Fabric& fabric, const std::vector<uint32_t>& rank_of,
                   std::vector<SentOfRank> by_rank, OpResult* result) {
  const std::vector<AmountByClass>& sent = fabric.sent_by();
  for (EndpointId e = 0; e < std::min(sent.size(), rank_of.size()); e++) {
    if (rank_of[e] == kNone) continue;
    for (size_t c = 0; c < kTrafficClasses; c++) {
      by_rank[rank_of[e]][c].bytes += sent[e][c].bytes;
      by_rank[rank_of[e]][c].packets += sent[e][c].packets;
    }
  }
  for (uint32_t rank = 0; rank < by_rank.size(); rank++) {
    for (size_t c = 0; c < kTrafficClasses; c++) {
      const RankSent& mine = by_rank[rank][c];
      RanksSent& into = result->ranks_sent[c];
      into.all.bytes += mine.bytes;
      into.all.packets += mine.packets;
      into.all.frames += mine.frames;
      if (rank > 0 && mine.bytes <= into.most.bytes) continue;
      into.most = mine;
      into.rank = rank;
    }
  }
}

RankPeak peak_of(const std::vector<uint64_t>& by_rank) {
  RankPeak peak;
  for (uint32_t rank = 0; rank < by_rank.size(); rank++) {
    peak.all += by_rank[rank];
    if (by_rank[rank] <= peak.most) continue;
    peak.most = by_rank[rank];
    peak.rank = rank;
  }
  return peak;
}

void account_fabric(const Fabric& fabric, Nanos start, OpResult* result,
                    const std::vector<HostId>& aggregators) {
  const Topology& topology = fabric.topology();
  const std::vector<LinkTraffic>& traffic = fabric.traffic();
  const std::vector<ClassTraffic> classes = sum_by_class(topology, traffic);
  result->links.resize(classes.size());
  for (LinkId id = 0; id < topology.links(); id++) {
    const Link& link = topology.link(id);
    LinkClassResult& into = result->links[Topology::link_class(link)];
    if (into.name.empty()) into.name = topology.class_name(link);
    const uint64_t bytes = traffic[id].all().bytes;
    into.bytes.push_back(bytes);
    result->fabric_bytes += bytes;
    const double capacity = fabric.port(id).spec().rate * static_cast<double>(result->took()) / 1e9;
    const double use = capacity > 0 ? static_cast<double>(bytes) / capacity : 0;
    if (use > result->hottest.use) result->hottest = {link_name(topology, id), bytes, use};
    if (traffic[id].peak_waiting > result->peaks.port) {
      result->peaks.port = traffic[id].peak_waiting;
      result->peaks.port_name = link_name(topology, id);
    }
  }
  for (size_t c = 0; c < classes.size(); c++) {
    LinkClassResult& into = result->links[c];
    into.sum = classes[c].sum;
    into.links = classes[c].links;
    into.most = classes[c].most_bytes;
    std::vector<uint64_t> sorted = into.bytes;
    if (sorted.empty()) continue;
    const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    into.middle = *middle;
  }
  account_hosts(topology, traffic, aggregators, result);
  account_arrivals(fabric, start, result);
}

}  // namespace mcast::sim
