// One field a line. A table of members makes both directions of texts and sizes, so none is
// forgotten in one of them; counters and repairs have keys that are made of names and ranks.
#include "engine/stats_record.h"

#include <array>

#include "wire/text_record.h"

namespace mcast {
namespace {

struct TextField {
  const char* key;
  std::string GroupStats::*member;
};
constexpr TextField kTexts[] = {
    {"path", &GroupStats::path},
    {"reason", &GroupStats::reason},
    {"transport", &GroupStats::transport},
    {"transport_reason", &GroupStats::transport_reason},
    {"contributions", &GroupStats::contributions},
    {"fold", &GroupStats::fold},
    {"streams", &GroupStats::streams},
    {"failure", &GroupStats::failure},
};

struct SizeField {
  const char* key;
  size_t GroupStats::*member;
};
constexpr SizeField kSizes[] = {
    {"chunk", &GroupStats::chunk},
    {"window", &GroupStats::window},
    {"eager", &GroupStats::eager},
    {"segment", &GroupStats::segment},
};

std::string counter_key(const char* name, bool reduce) {
  return std::string(reduce ? "reduce." : "both.") + name;
}

std::string cause_key(const std::string& of, size_t cause) {
  return of + "." + cause_name(static_cast<Cause>(cause));
}
std::string source_of(size_t i) { return "source." + std::to_string(i); }

void put_security(const SecurityStats& s, std::string& out) {
  const auto put = [&out](const std::string& key, uint64_t count) {
    if (count != 0) wire::put_field(out, key, std::to_string(count));
  };
  wire::put_field(out, "security", s.mode);
  put("security.watched", s.sources_watched ? 1 : 0);
  for (size_t i = 0; i < kCauses; i++) put(cause_key("refused", i), s.causes[i]);
  for (size_t n = 0; n < s.sources.size(); n++) {
    const SecurityStats::SourceRow& row = s.sources[n];
    wire::put_field(out, source_of(n), row.address);
    put(source_of(n) + ".refused", row.refused);
    put(source_of(n) + ".inherited", row.inherited);
    for (size_t i = 0; i < kCauses; i++) put(cause_key(source_of(n), i), row.causes[i]);
  }
}

void read_security(const wire::Fields& fields, SecurityStats& s) {
  if (const auto mode = fields.find("security"); mode != fields.end()) s.mode = mode->second;
  uint64_t watched = 0;
  if (wire::number(fields, "security.watched", watched)) s.sources_watched = watched != 0;
  for (size_t i = 0; i < kCauses; i++) {
    (void)wire::number(fields, cause_key("refused", i), s.causes[i]);
  }
  for (size_t n = 0; n < SecurityStats::kMostSources; n++) {
    const auto at = fields.find(source_of(n));
    if (at == fields.end()) break;
    SecurityStats::SourceRow& row = s.sources.emplace_back();
    row.address = at->second;
    (void)wire::number(fields, source_of(n) + ".refused", row.refused);
    (void)wire::number(fields, source_of(n) + ".inherited", row.inherited);
    for (size_t i = 0; i < kCauses; i++) {
      (void)wire::number(fields, cause_key(source_of(n), i), row.causes[i]);
    }
  }
}

}  // namespace

std::string encode_stats(const GroupStats& stats) {
  std::string out;
  for (const TextField& f : kTexts) wire::put_field(out, f.key, stats.*f.member);
  for (const SizeField& f : kSizes) wire::put_field(out, f.key, std::to_string(stats.*f.member));
  for (size_t i = 0; i < stats.counters.size(); i++) {
    const auto& [name, count] = stats.counters[i];
    if (count != 0) wire::put_field(out, counter_key(name, false), std::to_string(count));
    const uint64_t reduce = stats.reduce_counters[i];
    if (reduce != 0) wire::put_field(out, counter_key(name, true), std::to_string(reduce));
  }
  for (size_t r = 0; r < stats.repair_from_to.size(); r++) {
    const auto& [from, to] = stats.repair_from_to[r];
    if (from != 0) wire::put_field(out, "repair_from." + std::to_string(r), std::to_string(from));
    if (to != 0) wire::put_field(out, "repair_to." + std::to_string(r), std::to_string(to));
  }
  put_security(stats.security, out);
  return out;
}

void read_stats(const std::string& text, GroupStats& stats) {
  const wire::Fields fields = wire::fields_of(text);
  for (const TextField& f : kTexts) {
    if (const auto it = fields.find(f.key); it != fields.end()) stats.*f.member = it->second;
  }
  for (const SizeField& f : kSizes) (void)wire::number(fields, f.key, stats.*f.member);
  for (size_t i = 0; i < stats.counters.size(); i++) {
    auto& [name, count] = stats.counters[i];
    (void)wire::number(fields, counter_key(name, false), count);
    (void)wire::number(fields, counter_key(name, true), stats.reduce_counters[i]);
  }
  for (size_t r = 0; r < stats.repair_from_to.size(); r++) {
    auto& [from, to] = stats.repair_from_to[r];
    (void)wire::number(fields, "repair_from." + std::to_string(r), from);
    (void)wire::number(fields, "repair_to." + std::to_string(r), to);
  }
  read_security(fields, stats.security);
}

}  // namespace mcast
