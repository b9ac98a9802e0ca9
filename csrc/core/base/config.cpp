// Every function here walks one table of rows {description, pointer to the field}, expanded from
// MCAST_SETTINGS, so that a setting is added in one place. A value arrives as text from an option
// or from the environment; parsing it checks kind, range and the few rules that belong to one
// setting, and an error tells the whole story: which setting, what value, where it came from, what
// is allowed. The agreed settings are hashed as text: ranks that differ can then show each other
// what they have.
#include "base/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string_view>
#include <variant>

#include "base/ip_address.h"
#include "base/net_address.h"
#include "base/units.h"

namespace mcast {
namespace {

constexpr uint64_t kChunkMultiple = 64;

struct Row {
  SettingInfo info;
  std::variant<uint64_t Config::*, Nanos Config::*, std::string Config::*> field;
  std::vector<std::string_view> choices;  // of strings; empty: any
};

std::string format_milliseconds(Nanos value) {
  std::string text = std::to_string(value / kMilli);
  if (const Nanos rest = value % kMilli; rest != 0) {
    std::string digits = std::to_string(kMilli + rest);  // "1" and six digits
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits.substr(1);
  }
  return text;
}

std::string format(const Config& config, const Row& row) {
  if (const auto* u = std::get_if<uint64_t Config::*>(&row.field)) {
    return std::to_string(config.*(*u));
  }
  if (const auto* d = std::get_if<Nanos Config::*>(&row.field)) {
    return format_milliseconds(config.*(*d));
  }
  return config.*std::get<std::string Config::*>(row.field);
}

std::vector<std::string_view> choices_of(std::string_view name) {
  if (name == "shared_memory") return {"auto", "slots", "off"};
  if (name == "transport") {
    std::vector<std::string_view> choices = {"auto"};
    choices.insert(choices.end(), std::begin(kTransportNames), std::end(kTransportNames));
    return choices;
  }
  if (name == "fold") return {"rank", "turn"};
  if (name == "lane_policy") return {"fair", "gather"};
  if (name == "aggregate") return {"careful", "both", "off"};
  if (name == "algorithm") return {"auto", "multicast", "ring"};
  if (name == "engine_memory") return {"map", "slots", "copy", "auto", "map_all"};
  if (name == "device_failure") return {"abort", "raise", "log"};
  if (name == "device_wait") return {"auto", "stream", "host"};
  if (name == "wait") return {"auto", "sleep"};
  if (name == "security") return {"off", "auth", "sealed"};
  if (name == "security_suite") return {"auto", "aes128gcm", "aes256gcm", "chacha20poly1305"};
  if (name == "security_library") return {"auto", "libcrypto"};
  if (name == "monitor") return {"auto", "on", "off"};
  if (name == "debug") return {"off", "error", "warn", "info", "trace"};
  return {};
}

const std::vector<Row>& rows() {
  static const auto* const kRows = [] {
    auto* all = new std::vector<Row>{
#define MCAST_ROW_U(name, env, def, lo, hi, agreed, lane, help)                                 \
  {{#name, env, 'U', "", static_cast<double>(lo), static_cast<double>(hi), agreed, lane, help}, \
   &Config::name,                                                                               \
   {}},
#define MCAST_ROW_D(name, env, def, lo, hi, agreed, lane, help)                                 \
  {{#name, env, 'D', "", static_cast<double>(lo), static_cast<double>(hi), agreed, lane, help}, \
   &Config::name,                                                                               \
   {}},
#define MCAST_ROW_S(name, env, def, agreed, lane, help) \
  {{#name, env, 'S', "", 0, 0, agreed, lane, help}, &Config::name, choices_of(#name)},
        MCAST_SETTINGS(MCAST_ROW_U, MCAST_ROW_D, MCAST_ROW_S)
#undef MCAST_ROW_U
#undef MCAST_ROW_D
#undef MCAST_ROW_S
    };
    const Config defaults;
    for (Row& row : *all) row.info.default_text = format(defaults, row);
    return all;
  }();
  return *kRows;
}

const Row* find_row(std::string_view name) {
  for (const Row& row : rows()) {
    if (name == row.info.name) return &row;
  }
  return nullptr;
}

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// A number of milliseconds, also "0.5" and "1e3"; locale-independent.
bool parse_milliseconds(std::string_view text, double* out) {
  return read_decimal(text, *out) && std::isfinite(*out);
}

// 0.01 -> "0.01", 86400000 -> "86400000".
std::string format_bound(double value) {
  char text[32];
  const auto [end, error] =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed);
  return error == std::errc() ? std::string(text, end) : std::to_string(value);
}

std::string allowed(const Row& row) {
  const std::string range = format_bound(row.info.min) + " to " + format_bound(row.info.max);
  switch (row.info.kind) {
    case 'U': {
      if (row.info.name == std::string_view("link_rate")) {
        return "bits per second from " + range + ", optionally followed by kbit, mbit or gbit";
      }
      const bool chunk = row.info.name == std::string_view("chunk");
      return "a whole number from " + range + ", suffix K, M or G (2^10, 2^20, 2^30) allowed" +
             (chunk ? ", and a multiple of " + std::to_string(kChunkMultiple) : "");
    }
    case 'D':
      return "milliseconds from " + range + ", a number without unit";
    default: {
      if (row.info.name == std::string_view("aggregators")) {
        return "host:port, each once, separated by commas, at most " +
               std::to_string(kMostAggregators) + "; rack/host:port names its rack";
      }
      if (row.info.name == std::string_view("allow")) {
        return "networks such as 10.1.0.0/24 or fd00:1::/64, or single addresses, separated by "
               "commas, "
               "at most " +
               std::to_string(kMostAllowed);
      }
      if (row.info.name == std::string_view("rack")) {
        return "at most " + std::to_string(kMostRackBytes) + " letters, digits, '.', '-' or '_'";
      }
      if (row.info.name == std::string_view("engine")) {
        return "inproc, host or auto, and host:PATH or auto:PATH with an absolute path";
      }
      if (row.info.name == std::string_view("port_range")) {
        return "first-last, ports from 1 to 65535";
      }
      std::string list;
      for (size_t i = 0; i < row.choices.size(); ++i) {
        if (i > 0) list += i + 1 == row.choices.size() ? " or " : ", ";
        list += row.choices[i];
      }
      return list;
    }
  }
}

// As they are written, without blanks, so that ranks that mean the same agree.
bool assign_aggregators(Config& config, std::string_view text) {
  const Result<std::vector<NetAddress>> all = parse_net_addresses(text, kMostAggregators);
  if (!all.ok()) return false;
  config.aggregators.clear();
  for (const NetAddress& one : *all) {
    config.aggregators += (config.aggregators.empty() ? "" : ",") + one.text();
  }
  return true;
}

// As it is written, without blanks.
bool assign_allow(Config& config, std::string_view text) {
  const Result<std::vector<IpNetwork>> all = parse_networks(text, kMostAllowed);
  if (!all.ok()) return false;
  config.allow.clear();
  for (const IpNetwork& one : *all) {
    config.allow += (config.allow.empty() ? "" : ",") + one.text();
  }
  return true;
}

}  // namespace

bool EngineChoice::parse(std::string_view text, EngineChoice& out) {
  const size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const bool path = colon != std::string_view::npos;
  if (path) out.path = text.substr(colon + 1);
  if (word == "inproc") out.where = Where::kInProcess;
  if (word == "host") out.where = Where::kHost;
  if (word == "auto") out.where = Where::kAuto;
  if (path && (out.path.empty() || out.path[0] != '/' || word == "inproc")) return false;
  return word == "inproc" || word == "host" || word == "auto";
}

namespace {

// False: `text` is not allowed, `config` is as before.
bool assign(Config& config, const Row& row, std::string_view text) {
  text = trim(text);
  if (const auto* u = std::get_if<uint64_t Config::*>(&row.field)) {
    uint64_t value = 0;
    const bool rate = *u == &Config::link_rate && text != "0";
    if (!(rate ? parse_rate(text, value) : parse_size(text, value))) return false;
    const auto as_double = static_cast<double>(value);
    if (as_double < row.info.min || as_double > row.info.max) return false;
    if (*u == &Config::chunk && value % kChunkMultiple != 0) return false;
    config.*(*u) = value;
    return true;
  }
  if (const auto* d = std::get_if<Nanos Config::*>(&row.field)) {
    double value = 0;
    if (!parse_milliseconds(text, &value)) return false;
    if (value < row.info.min || value > row.info.max) return false;
    config.*(*d) = std::llround(value * static_cast<double>(kMilli));
    return true;
  }
  const auto s = std::get<std::string Config::*>(row.field);
  if (s == &Config::rack && !text.empty() && !is_rack_name(text)) return false;
  if (PortRange range; s == &Config::port_range && !parse_port_range(text, range)) return false;
  if (s == &Config::aggregators) return assign_aggregators(config, text);
  if (s == &Config::allow) return assign_allow(config, text);
  if (EngineChoice choice; s == &Config::engine && !EngineChoice::parse(text, choice)) return false;
  if (row.choices.empty()) {
    config.*s = std::string(text);
    return true;
  }
  // Lower case is stored, so that ranks which say "UDP" and "udp" agree.
  std::string word = lower(text);
  if (std::find(row.choices.begin(), row.choices.end(), word) == row.choices.end()) return false;
  config.*s = std::move(word);
  return true;
}

// Describes the wrong part of a list, and the reason; "": the setting is not a list.
std::string reason_of(const Row& row, const std::string& text) {
  const std::string_view name = row.info.name;
  if (name != "aggregators" && name != "allow") return "";
  const Status status = name == "allow"
                            ? parse_networks(trim(text), kMostAllowed).status()
                            : parse_net_addresses(trim(text), kMostAggregators).status();
  return status.ok() ? "" : " (" + status.message() + ")";
}

Status refused(const Row& row, const std::string& text, const std::string& source) {
  return Status(Code::kInvalidArgument, std::string("setting ") + row.info.name + ": \"" + text +
                                            "\" from " + source + " is not valid" +
                                            reason_of(row, text) + "; allowed: " + allowed(row));
}

// Levenshtein distance: insertions, deletions and substitutions that make b of a.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

Status unknown_option(const std::string& name) {
  // "MCAST_EAGER", "Eager" and "probe-timeout" are near misses too.
  std::string plain = lower(trim(name));
  if (plain.rfind("mcast_", 0) == 0) plain.erase(0, 6);
  std::replace(plain.begin(), plain.end(), '-', '_');
  const Row* nearest = nullptr;
  size_t best = plain.size() / 3 + 2;  // farther is a guess, not a typing mistake
  for (const Row& row : rows()) {
    const std::string_view known = row.info.name;
    // The distance is this at least, so none is computed for a long text.
    const size_t least =
        std::max(plain.size(), known.size()) - std::min(plain.size(), known.size());
    if (least >= best) continue;
    const size_t distance = edit_distance(plain, known);
    if (distance < best) {
      best = distance;
      nearest = &row;
    }
  }
  std::string message = "unknown option \"" + name + "\"";
  if (nearest != nullptr) {
    message += std::string("; did you mean \"") + nearest->info.name + "\"?";
  } else {
    message += "; options are";
    for (const Row& row : rows()) message += std::string(" ") + row.info.name;
  }
  return Status(Code::kInvalidArgument, message);
}

}  // namespace

Result<Config> Config::resolve(const std::map<std::string, std::string>& overrides,
                               const std::map<std::string, std::string>& environment) {
  Config config;
  for (const auto& [name, text] : overrides) {
    if (find_row(name) == nullptr) return unknown_option(name);
  }
  for (const Row& row : rows()) {
    // The option alone is looked at where there is one: a bad variable that it hides does no harm.
    if (const auto option = overrides.find(row.info.name); option != overrides.end()) {
      if (!assign(config, row, option->second)) {
        return refused(row, option->second, std::string("option ") + row.info.name);
      }
      continue;
    }
    // An empty variable counts as unset, as shells and launchers make them.
    const auto variable = environment.find(row.info.env);
    if (variable == environment.end() || trim(variable->second).empty()) continue;
    if (!assign(config, row, variable->second)) {
      return refused(row, variable->second, std::string("environment variable ") + row.info.env);
    }
  }
  // Over connections in clear a digest would prove nothing.
  if (config.source_auth != 0 && config.security == "off") {
    return Status(Code::kInvalidArgument,
                  "setting source_auth: 1 needs security=auth or security=sealed, and security is "
                  "off; set MCAST_SECURITY, or MCAST_SOURCE_AUTH=0");
  }
  return config;
}

Status Config::check_setting(const std::string& name, const std::string& text) {
  const Row* const row = find_row(name);
  if (row == nullptr) return unknown_option(name);
  Config config;
  return assign(config, *row, text) ? Status() : refused(*row, text, "option " + name);
}

std::map<std::string, std::string> Config::read_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || text.rfind("MCAST_", 0) != 0) continue;
    // No setting: there is to be no copy of it on the heap.
    if (text.substr(0, equals) == "MCAST_SECRET") continue;
    found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

std::string Config::get(const std::string& name) const {
  const Row* row = find_row(name);
  return row != nullptr ? format(*this, *row) : "";
}

std::map<std::string, std::string> Config::values() const {
  std::map<std::string, std::string> all;
  for (const Row& row : rows()) all.emplace(row.info.name, format(*this, row));
  return all;
}

std::string Config::agreed_text() const {
  std::string text;
  for (const Row& row : rows()) {
    if (!row.info.agreed) continue;
    if (!text.empty()) text += ' ';
    text += std::string(row.info.name) + "=" + format(*this, row);
  }
  return text;
}

std::string Config::lane_key() const {
  std::string key;
  for (const Row& row : rows()) {
    if (row.info.lane) key += format(*this, row) + "\n";
  }
  return key + (ipv6 ? "ipv6\n" : "");
}

const std::vector<SettingInfo>& setting_table() {
  static const auto* const kTable = [] {
    auto* table = new std::vector<SettingInfo>;
    for (const Row& row : rows()) table->push_back(row.info);
    return table;
  }();
  return *kTable;
}

}  // namespace mcast
