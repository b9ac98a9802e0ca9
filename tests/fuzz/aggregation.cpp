// Messages between ranks, stations and aggregators. The input's first byte selects a body, which
// every parser gets, or an admission record. An accepted body is written back as the same bytes; an
// accepted record, whose fields may be in any order, stays the same when it is written and read.
#include <string>

#include "fuzz.h"
#include "wire/admission.h"
#include "wire/aggregation.h"

using namespace mcast;
using fuzz::require;

namespace {

template <typename Put>
void same(ConstBytes body, ConstBytes payload, Put put) {
  wire::Writer out;
  put(out);
  for (const std::byte b : payload) out.put<uint8_t>(static_cast<uint8_t>(b));
  require(fuzz::equal(out.bytes(), body), "a body is written as it was read");
}

void check_operations(ConstBytes body) {
  wire::AggOpen open;
  if (wire::parse_agg_open(body, open)) same(body, {}, [&](auto& o) { put_agg_open(o, open); });
  wire::AggResult result;
  if (wire::parse_agg_result(body, result)) {
    same(body, result.payload, [&](auto& o) {
      wire::put_agg_result_head(o, result.number, result.form, result.contributors);
    });
  }
  wire::AggDecline decline;
  if (wire::parse_agg_decline(body, decline)) {
    same(body, {}, [&](auto& o) { put_agg_decline(o, decline); });
  }
  wire::AggWait wait;
  if (wire::parse_agg_wait(body, wait)) same(body, {}, [&](auto& o) { put_agg_wait(o, wait); });
  wire::PartialResult partial;
  if (wire::parse_partial(body, partial)) {
    require(partial.ranks().size() <= 64 * partial.excused.size(), "ranks of its words");
    same(body, {}, [&](auto& o) { put_partial(o, partial); });
  }
}

void check_rosters(ConstBytes body) {
  wire::AggGone gone;
  if (wire::parse_agg_gone(body, gone)) same(body, {}, [&](auto& o) { put_agg_gone(o, gone); });
  wire::Divert divert;
  if (wire::parse_divert(body, divert)) {
    for (size_t i = 1; i < divert.segments.size(); i++) {
      require(divert.segments[i - 1].end < divert.segments[i].first, "ranges ascend");
    }
    same(body, {}, [&](auto& o) { wire::put_divert(o, divert.station, divert.segments); });
  }
  wire::StationRoster roster;
  if (wire::parse_roster(body, roster)) {
    require(roster.stations.size() <= wire::kMostStations, "bounded");
    same(body, {}, [&](auto& o) { put_roster(o, roster); });
  }
  wire::RosterReach reach;
  if (wire::parse_roster_reach(body, reach)) {
    require(reach.connected.size() == reach.heard.size(), "both masks of one length");
    same(body, {}, [&](auto& o) { put_roster_reach(o, reach); });
  }
  uint32_t version = 0;
  if (wire::parse_roster_version(body, version)) {
    same(body, {}, [&](auto& o) { o.template put<uint32_t>(version); });
  }
}

void check_record(std::string_view text) {
  wire::Admission record, again;
  const Status status = wire::decode_admission(text, record);
  const wire::Ask heading = wire::ask_heading(text);
  if (!status.ok()) {
    require(status.code() == Code::kInvalidArgument && !status.message().empty(), "a reason");
    return;
  }
  require(wire::decode_admission(wire::encode(record), again).ok() && again == record,
          "a record stays what it is");
  if (const auto* const ask = std::get_if<wire::Ask>(&record)) {
    require(heading.protocol == ask->protocol && heading.version == ask->version, "its heading");
    require(heading.security == ask->security, "what decides before the rest is read");
    require(ask->host_of.size() == ask->uids.size(), "every rank has a host");
    for (const uint32_t host : ask->host_of) require(host < ask->uids.size(), "within bounds");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if ((data[0] & 1u) != 0) {
    check_record(fuzz::text_of(data + 1, size - 1));
    return 0;
  }
  const ConstBytes body = fuzz::bytes_of(data + 1, size - 1);
  check_operations(body);
  check_rosters(body);
  return 0;
}
