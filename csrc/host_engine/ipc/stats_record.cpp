// One field per line. The common part of both directions is written once: a table of members, and
// functions that list the fields for a writer or a reader, so that no field is forgotten in one of
// them. Lists contain their number of rows; keys of counters and repairs consist of names and
// ranks.
#include "host_engine/ipc/stats_record.h"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "base/units.h"
#include "collective/error_text.h"
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

// One list of fields (`tell`) serves both directions, with one of these classes.
class Put {
 public:
  explicit Put(size_t most) : most_(most) {}
  static constexpr bool kReads = false;

  void field(const std::string& key, const std::string& value) {
    const size_t length = key.size() + value.size() + 2;
    if (length <= most_ - text_.size()) wire::put_field(text_, key, value);
  }
  void operator()(const std::string& key, const std::string& value) { field(key, value); }
  void operator()(const std::string& key, double value) { field(key, decimal_text(value)); }
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> operator()(const std::string& key, T value) {
    if (value != 0) field(key, std::to_string(value));
  }
  void operator()(const std::string& key, const std::vector<Member>& ranks) {
    field(key, ranks_text(ranks));
  }
  template <typename Row, typename Tell>
  void rows(const std::string& key, const std::vector<Row>& list, Tell tell) {
    (*this)(key, list.size());
    for (size_t i = 0; i < list.size(); i++) tell(list[i], key + "." + std::to_string(i) + ".");
  }
  template <typename Part, typename Tell>
  void maybe(const std::string& key, const std::optional<Part>& part, Tell tell) {
    (*this)(key, part.has_value());
    if (part) tell(*part, key + ".");
  }
  std::string take() { return std::move(text_); }

 private:
  const size_t most_;
  std::string text_;
};

class Take {
 public:
  explicit Take(const wire::Fields& fields) : fields_(fields) {}
  static constexpr bool kReads = true;

  void operator()(const std::string& key, std::string& value) const {
    if (const auto it = fields_.find(key); it != fields_.end()) value = it->second;
  }
  void operator()(const std::string& key, double& value) const {
    if (const auto it = fields_.find(key); it != fields_.end()) {
      (void)read_decimal(it->second, value);
    }
  }
  void operator()(const std::string& key, bool& value) const {
    uint8_t number = 0;
    if (wire::number(fields_, key, number)) value = number != 0;
  }
  template <typename T>
  std::enable_if_t<std::is_integral_v<T>> operator()(const std::string& key, T& value) const {
    (void)wire::number(fields_, key, value);
  }
  // Numbers separated by ", "; anything else ends the list.
  void operator()(const std::string& key, std::vector<Member>& ranks) const {
    std::string text;
    (*this)(key, text);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(", ", at), text.size());
      Member rank = 0;
      if (!read_number(text.substr(at, end - at), rank)) return;
      ranks.push_back(rank);
      at = end + 2;
    }
  }
  template <typename Row, typename Tell>
  void rows(const std::string& key, std::vector<Row>& list, Tell tell) const {
    size_t count = 0;
    (*this)(key, count);
    list.clear();
    // (No text has more rows than fields.)
    list.resize(std::min(count, fields_.size()));
    for (size_t i = 0; i < list.size(); i++) tell(list[i], key + "." + std::to_string(i) + ".");
  }
  template <typename Part, typename Tell>
  void maybe(const std::string& key, std::optional<Part>& part, Tell tell) const {
    bool there = false;
    (*this)(key, there);
    part.reset();
    if (!there) return;
    // Not emplace(): clang 14 takes a nested class with initializers for one without.
    part = Part{};
    tell(*part, key + ".");
  }

 private:
  const wire::Fields& fields_;
};

template <typename Way, typename Plan>
void tell_plan(Way& way, Plan& plan, const std::string& at) {
  auto kind = static_cast<uint8_t>(plan.kind);
  auto reason = static_cast<uint8_t>(plan.placement.reason);
  way(at + "kind", kind);
  way(at + "reason", reason);
  if constexpr (Way::kReads) {
    if (kind > 0 && kind <= wire::kKindMax) plan.kind = static_cast<wire::Kind>(kind);
    plan.placement.reason = static_cast<PlacementReason>(reason);
  }
  way(at + "sequence", plan.sequence);
  way(at + "bytes", plan.bytes);
  auto& placement = plan.placement;
  way(at + "part", placement.part);
  way(at + "owner", placement.owner);
  way(at + "kept", placement.kept);
  way(at + "planned", placement.planned);
  way(at + "workers", placement.workers);
  way(at + "alone", placement.alone);
  way(at + "served", placement.served);
  way(at + "with", plan.with);
  way(at + "without", plan.without);
  way.rows(at + "dealt", placement.stations,
           [&](auto& part, const std::string& key) { way(key + "part", part); });
  way.rows(at + "stations", plan.stations, [&](auto& station, const std::string& key) {
    way(key + "address", station.address);
    way(key + "capacity", station.capacity);
    way(key + "lost", station.lost);
  });
  // Code that shows stations shows the part of each.
  if constexpr (Way::kReads) placement.stations.resize(plan.stations.size());
}

template <typename Way, typename Aggregation>
void tell_aggregation(Way& way, Aggregation& aggregation) {
  way("no_partial", aggregation.no_partial);
  way.rows("aggregators", aggregation.aggregators, [&](auto& one, const std::string& at) {
    way(at + "address", one.address);
    way(at + "state", one.state);
    way(at + "reason", one.reason);
    way(at + "stations", one.stations);
    way(at + "capacity", one.capacity);
  });
  auto& report = aggregation.report;
  way.rows("plans", report.plans,
           [&](auto& plan, const std::string& at) { tell_plan(way, plan, at); });
  way("partial.operations", report.partial.operations);
  way("partial.excused", report.partial.excused);
  way.maybe("partial.last", report.partial.last, [&](auto& last, const std::string& at) {
    way(at + "sequence", last.sequence);
    way(at + "contributors", last.contributors);
    way(at + "ranks", last.ranks);
  });
  way.maybe("waiting", report.waiting, [&](auto& waiting, const std::string& at) {
    way(at + "sequence", waiting.sequence);
    auto time = static_cast<uint64_t>(waiting.time);
    way(at + "time", time);
    if constexpr (Way::kReads) waiting.time = static_cast<Nanos>(time);
    way(at + "ranks", waiting.ranks);
  });
}

template <typename Way, typename Security>
void tell_security(Way& way, Security& security) {
  way("security", security.mode);
  way("security.watched", security.sources_watched);
  way("security.suite", security.suite);
  way("security.library", security.library);
  way("security.trust_store", security.trust_store);
  bool unlocked = !security.keys_locked;
  way("security.keys_unlocked", unlocked);
  if constexpr (Way::kReads) security.keys_locked = !unlocked;
  way("security.sealed", security.sealed);
  way("security.opened", security.opened);
  way("security.untried", security.untried);
  way("security.epoch", security.epoch);
  const auto tell_causes = [&way](auto& causes, const std::string& at) {
    for (size_t i = 0; i < kCauses; i++) way(at + cause_name(static_cast<Cause>(i)), causes[i]);
  };
  tell_causes(security.causes, "refused.");
  way.rows("sources", security.sources, [&](auto& row, const std::string& at) {
    way(at + "address", row.address);
    way(at + "refused", row.refused);
    way(at + "inherited", row.inherited);
    tell_causes(row.causes, at);
  });
}

}  // namespace

std::string encode_stats(const GroupStats& stats, size_t most) {
  Put put(most);
  for (const TextField& f : kTexts) put.field(f.key, stats.*f.member);
  for (const SizeField& f : kSizes) put.field(f.key, std::to_string(stats.*f.member));
  for (size_t i = 0; i < stats.counters.size(); i++) {
    const auto& [name, count] = stats.counters[i];
    put(counter_key(name, false), count);
    put(counter_key(name, true), stats.reduce_counters[i]);
  }
  tell_security(put, stats.security);
  tell_aggregation(put, stats.aggregation);
  for (size_t r = 0; r < stats.repair_from_to.size(); r++) {
    const auto& [from, to] = stats.repair_from_to[r];
    put("repair_from." + std::to_string(r), from);
    put("repair_to." + std::to_string(r), to);
  }
  return put.take();
}

void read_stats(const std::string& text, GroupStats& stats) {
  const wire::Fields fields = wire::fields_of(text);
  const Take take(fields);
  for (const TextField& f : kTexts) take(f.key, stats.*f.member);
  for (const SizeField& f : kSizes) take(f.key, stats.*f.member);
  for (size_t i = 0; i < stats.counters.size(); i++) {
    auto& [name, count] = stats.counters[i];
    take(counter_key(name, false), count);
    take(counter_key(name, true), stats.reduce_counters[i]);
  }
  tell_security(take, stats.security);
  tell_aggregation(take, stats.aggregation);
  for (size_t r = 0; r < stats.repair_from_to.size(); r++) {
    auto& [from, to] = stats.repair_from_to[r];
    take("repair_from." + std::to_string(r), from);
    take("repair_to." + std::to_string(r), to);
  }
}

}  // namespace mcast
