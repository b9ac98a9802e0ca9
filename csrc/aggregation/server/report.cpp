// One object for each station, job and end, written as it is built. Names come from other hosts:
// Json escapes all bytes that they hold.
#include "aggregation/server/report.h"

#include <algorithm>

#include "base/json.h"
#include "base/version.h"
#include "wire/protocol_version.h"

namespace mcast::service {
namespace {

double seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

void put_station(Json& json, const StationReport& s, double cpu_share, Nanos now) {
  json.open('{').field("address", s.address).field("connected", s.connected);
  json.field("cpu_share", cpu_share).field("cpu_s", seconds(s.cpu));
  json.field("bytes_in", s.bytes_in).field("bytes_out", s.bytes_out);
  json.field("frames_in", s.frames_in).field("frames_out", s.frames_out);
  const uint64_t folded = std::max<uint64_t>(1, s.folded_bytes);
  json.field("folded_bytes", s.folded_bytes).field("memory", s.memory);
  json.field("staged_share", static_cast<double>(s.staged_bytes) / static_cast<double>(folded));
  json.field("operations", s.operations).field("open_operations", s.open_operations);
  json.field("declined", s.declined).field("repeated", s.repeated);
  json.field("stale", s.stale).field("malformed", s.malformed).field("blocks", s.blocks);
  json.key("refused").open('{');
  for (size_t i = 0; i < kCauses; i++) {
    if (s.refused[i] > 0) json.field(cause_name(static_cast<Cause>(i)), s.refused[i]);
  }
  json.close('}');
  if (s.oldest) {
    json.key("oldest").open('{').field("operation", s.oldest->operation);
    json.field("ms", 1e3 * seconds(now - s.oldest->since)).key("waits_for_ranks").open('[');
    for (const Member rank : s.oldest->missing) json.value(uint64_t{rank});
    json.close(']').close('}');
  }
  json.close('}');
}

void put_job(Json& json, const JobReport& job, Nanos now) {
  StationReport sum;
  for (const StationReport& s : job.stations) {
    sum.bytes_in += s.bytes_in;
    sum.bytes_out += s.bytes_out;
    sum.memory += s.memory;
    sum.operations = std::max(sum.operations, s.operations);
  }
  json.open('{').field("job", job.number).field("name", job.name);
  json.field("ranks", job.ranks).field("hosts", job.hosts).field("quota", job.quota);
  json.field("quota_used", sum.memory).field("age_s", seconds(now - job.since));
  json.field("asker_connected", job.asked_for).field("operations", sum.operations);
  json.field("bytes_in", sum.bytes_in).field("bytes_out", sum.bytes_out);
  json.field("rate_in", job.rate_in).field("rate_out", job.rate_out);
  json.key("stations").open('[');
  for (size_t i = 0; i < job.stations.size(); i++) {
    put_station(json, job.stations[i], i < job.cpu_shares.size() ? job.cpu_shares[i] : 0, now);
  }
  json.close(']').close('}');
}

}  // namespace

std::string json_text(const Report& report) {
  Json json;
  json.open('{').field("version", version()).field("protocol", kProtocolVersion);
  json.field("address", report.address).field("uptime_s", seconds(report.now - report.started));
  json.field("draining", report.draining).field("accepted", report.accepted);
  json.key("limits").open('{').field("quota", report.quota);
  json.field("quota_per_job", report.quota_per_job).field("jobs", report.most_jobs);
  json.field("lanes", report.lanes).field("rate", report.rate).close('}');
  json.field("quota_used", report.quota_used).key("refused").open('{');
  for (size_t i = 0; i < kRefusals; i++) {
    json.field(ask_refusal_name(static_cast<AskRefusal>(i)), report.refused[i]);
  }
  json.close('}').key("jobs").open('[');
  for (const JobReport& job : report.jobs) put_job(json, job, report.now);
  json.close(']').key("ended").open('[');
  for (const EndedJob& job : report.ended) {
    json.open('{').field("job", job.number).field("name", job.name).field("why", job.why);
    json.field("ago_s", seconds(report.now - job.at)).close('}');
  }
  return json.close(']').close('}').take() + "\n";
}

}  // namespace mcast::service
