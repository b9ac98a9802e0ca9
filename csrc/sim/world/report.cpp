// One function for each part of the object. The timeline ends with its last used bin.
#include "sim/world/report.h"

#include <algorithm>

#include "base/json.h"

namespace mcast::sim {
namespace {

std::string hex_text(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

void put_amount(Json& json, const char* name, const Amount& amount) {
  json.key(name).open('{').field("bytes", amount.bytes).field("packets", amount.packets);
  json.close('}');
}

void put_classes(Json& json, const char* name, const std::array<Amount, kTrafficClasses>& of) {
  json.key(name).open('{');
  for (size_t c = 0; c < kTrafficClasses; c++) {
    if (of[c].packets == 0) continue;
    put_amount(json, traffic_class_name(static_cast<TrafficClass>(c)), of[c]);
  }
  json.close('}');
}

void put_ranks_sent(Json& json, const OpResult& result, double ranks) {
  json.key("ranks_sent").open('{');
  for (size_t c = 0; c < kTrafficClasses; c++) {
    const auto& [all, most, rank] = result.ranks_sent[c];
    if (all.packets == 0 && all.frames == 0) continue;
    json.key(traffic_class_name(static_cast<TrafficClass>(c))).open('{');
    json.key("mean").open('{').field("bytes", static_cast<double>(all.bytes) / ranks);
    json.field("packets", static_cast<double>(all.packets) / ranks);
    json.field("frames", static_cast<double>(all.frames) / ranks).close('}');
    json.key("most").open('{').field("rank", rank).field("bytes", most.bytes);
    json.field("packets", most.packets).field("frames", most.frames).close('}').close('}');
  }
  json.close('}');
}

void put_rank_peak(Json& json, const char* name, const RankPeak& peak, double ranks) {
  json.key(name).open('{').field("mean", static_cast<double>(peak.all) / ranks);
  json.field("most", peak.most).field("rank", peak.rank).close('}');
}

void put_states(Json& json, const States& states) {
  json.key("state").open('{').field("idle", states.idle).field("peak", states.peak);
  const std::pair<const char*, const std::optional<RankState>*> places[] = {
      {"top", &states.top}, {"inner", &states.inner}, {"leaf", &states.leaf}};
  for (const auto& [name, state] : places) {
    if (!*state) continue;
    json.key(name).open('{').field("rank", (*state)->rank).field("idle", (*state)->idle);
    json.field("peak", (*state)->peak).close('}');
  }
  json.close('}');
}

void put_network(Json& json, const ExperimentSpec& spec) {
  const Framing framing = framing_of(spec);
  json.field("hosts", spec.hosts).field("ranks", spec.ranks).field("size", spec.size);
  json.field("rate", spec.net.rate * 8).field("mtu", spec.net.mtu);
  json.field("wake", spec.wake).field("turn", spec.turn);
  json.key("framing").open('{');
  json.field("datagram_payload", framing.datagram_payload);
  json.field("datagram_overhead", framing.datagram_overhead);
  json.field("stream_payload", framing.stream_payload);
  json.field("stream_overhead", framing.stream_overhead).close('}');
}

void put_ops(Json& json, const OpResult& result) {
  json.key("ops").open('[');
  for (const OpTimes& op : result.ops) {
    json.open('{').field("op", collective_name(op.op)).field("time", op.time);
    json.field("bound", op.bound).field("first_byte", op.first_byte);
    json.field("last_byte", op.last_byte).key("per_rank").open('[');
    for (const Nanos time : op.per_rank) json.value(static_cast<uint64_t>(time));
    json.close(']').close('}');
  }
  json.close(']');
}

void put_links(Json& json, const OpResult& result, bool each) {
  json.key("links").open('{');
  for (const LinkClassResult& links : result.links) {
    const Amount all = links.sum.all();
    json.key(links.name.c_str()).open('{').field("links", links.links);
    json.field("bytes", all.bytes).field("packets", all.packets);
    json.field("max", links.most).field("p50", links.middle);
    json.field("drops", links.sum.lost_full).field("lost", links.sum.lost_fault);
    json.field("marks", links.sum.marked);
    json.field("peak_queue", static_cast<uint64_t>(links.sum.peak_waiting));
    put_classes(json, "by", links.sum.of);
    if (each) {
      json.key("each").open('[');
      for (const uint64_t bytes : links.bytes) json.value(bytes);
      json.close(']');
    }
    json.close('}');
  }
  json.close('}');
}

void put_peaks(Json& json, const OpResult& result, double ranks) {
  const Peaks& peaks = result.peaks;
  json.key("hottest").open('{').field("link", result.hottest.name);
  json.field("bytes", result.hottest.bytes).field("use", result.hottest.use).close('}');
  json.key("frames").open('{').field("all", result.frames.all).field("most", result.frames.most);
  json.field("rank", result.frames.rank).close('}');
  json.key("peaks").open('{').field("port", static_cast<uint64_t>(peaks.port));
  json.field("port_link", peaks.port_name);
  put_rank_peak(json, "inbox", peaks.inbox, ranks);
  put_rank_peak(json, "staging", peaks.staging, ranks);
  json.close('}');
  put_states(json, result.states);
  json.key("counters").open('{');
  for (const auto& [name, value] : result.counters) json.field(name.c_str(), value);
  json.close('}');
}

void put_guard(Json& json, const OpResult& result) {
  if (!result.guard) return;
  const GuardCost& cost = *result.guard;
  json.key("security").open('{');
  json.field("datagrams", cost.datagrams).field("datagram_bytes", cost.datagram_bytes);
  json.field("records", cost.records).field("record_bytes", cost.record_bytes);
  json.field("handshakes", cost.handshakes).field("handshake_bytes", cost.handshake_bytes);
  json.close('}');
}

void put_timeline(Json& json, const OpResult& result) {
  size_t used = 0;
  for (const Timeline::Bins& bins : result.timeline) {
    for (size_t i = 0; i < Timeline::kBins; i++) used = std::max(used, bins[i] > 0 ? i + 1 : 0);
  }
  json.key("timeline").open('{').field("bin", result.bin).key("bytes").open('{');
  for (size_t c = 0; c < result.timeline.size(); c++) {
    json.key(result.links[c].name.c_str()).open('[');
    for (size_t i = 0; i < used; i++) json.value(result.timeline[c][i]);
    json.close(']');
  }
  json.close('}').close('}');
}

}  // namespace

std::string report_json(const ExperimentSpec& spec, const OpResult& result,
                        const ReportOptions& options) {
  Json json;
  json.open('{').field("schema", kReportSchema).field("spec", spec.text);
  json.field("algorithm", result.algorithm).field("seed", spec.seed);
  json.field("trace_hash", hex_text(result.trace_hash));
  put_network(json, spec);
  put_ops(json, result);
  json.field("time", result.took());
  put_links(json, result, options.links);
  json.field("host_up", result.host_up).field("host_down", result.host_down);
  if (spec.extra_hosts() > 0) {
    json.key("aggregators").open('{').field("count", spec.aggregators.count);
    json.field("rate", (spec.aggregators.rate > 0 ? spec.aggregators.rate : spec.net.rate) * 8);
    json.field("up", result.aggregator.up).field("down", result.aggregator.down);
    json.field("most", result.aggregator.most);
    const Served served = served_by_aggregators(spec);
    json.field("part", served.part).field("plan", served.reason).close('}');
  }
  json.field("fabric_bytes", result.fabric_bytes);
  put_classes(json, "sent", result.sent);
  put_ranks_sent(json, result, spec.all_ranks());
  put_peaks(json, result, spec.all_ranks());
  put_guard(json, result);
  put_timeline(json, result);
  json.field("events", result.events);
  if (options.wall) json.field("wall", *options.wall);
  json.close('}');
  return json.take();
}

std::string error_json(std::string_view text, const Status& why) {
  Json json;
  json.open('{').field("schema", kReportSchema).field("spec", text);
  json.field("error", why.message()).close('}');
  return json.take();
}

}  // namespace mcast::sim
