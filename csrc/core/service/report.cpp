// JSON is written as it is built: objects and lists open, values follow, they close. Names come
// from other hosts, so whatever bytes they hold are escaped; bytes that are no ASCII become "?".
#include "service/report.h"

#include <cmath>
#include <cstdio>

#include "base/version.h"
#include "engine/rendezvous.h"

namespace mcast::service {
namespace {

class Json {
 public:
  Json& open(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(const char* name) {
    value(std::string_view(name));
    text_ += ':';
    first_ = true;  // no comma before the value
    return *this;
  }
  void value(std::string_view text) {
    separate();
    text_ += '"';
    for (const char c : text) put(c);
    text_ += '"';
  }
  void value(bool flag) { raw(flag ? "true" : "false"); }
  void value(uint64_t number) { raw(std::to_string(number)); }
  // Three decimals.
  void value(double number) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%.3f", std::isfinite(number) ? number : 0.0);
    for (char& c : digits) c = c == ',' ? '.' : c;  // of a locale
    raw(digits);
  }
  template <typename T>
  Json& field(const char* name, const T& what) {
    key(name);
    if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
      value(what);
    } else if constexpr (std::is_integral_v<T>) {
      value(static_cast<uint64_t>(what));
    } else {
      value(std::string_view(what));
    }
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  void separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  void raw(std::string_view token) {
    separate();
    text_ += token;
  }
  void put(char c) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else {
      text_ += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }

  std::string text_;
  bool first_ = true;
};

double seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

void put_station(Json& json, const StationReport& s, double cpu_share, Nanos now) {
  json.open('{').field("address", s.address).field("connected", s.connected);
  json.field("cpu_share", cpu_share).field("cpu_s", seconds(s.cpu));
  json.field("bytes_in", s.bytes_in).field("bytes_out", s.bytes_out);
  json.field("frames_in", s.frames_in).field("frames_out", s.frames_out);
  json.field("folded_bytes", s.folded_bytes).field("memory", s.memory);
  json.field("operations", s.operations).field("open_operations", s.open_operations);
  json.field("declined", s.declined).field("repeated", s.repeated);
  json.field("stale", s.stale).field("malformed", s.malformed).field("blocks", s.blocks);
  if (s.waits) {
    json.key("oldest").open('{').field("operation", s.oldest);
    json.field("ms", 1e3 * seconds(now - s.oldest_since)).key("waits_for_ranks").open('[');
    for (const Member rank : s.missing) json.value(uint64_t{rank});
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
    json.field(refusal_name(static_cast<Refusal>(i)), report.refused[i]);
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
