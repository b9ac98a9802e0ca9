// Text and data share one table: fields() names the fields of each kind of item, and printing,
// parsing and the defaults use it. Numbers are written so that they read back exactly.
#include "sim/swarm/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "base/units.h"

namespace mcast::sim {

namespace {

constexpr std::array<const char*, kFaultKinds> kFaultNames = {
    "pause",    "kill",    "isolate",   "mute",      "reset",     "jump",    "abort",
    "close",    "drop",    "loss",      "duplicate", "reorder",   "corrupt", "replay",
    "cut",      "delay",   "refuse",    "forget",    "flood",     "exit",    "absent",
    "agg_kill", "agg_end", "agg_pause", "agg_cut",   "agg_repeat"};

// ---- the table ----

template <typename F>
void fields(F& f, PlannedWorld& w) {
  f("seed", w.seed);
  f("hosts", w.hosts);
  f("ranks", w.ranks);
  f("topology", w.topology);
  f("rate", w.rate);
  f("delay", w.delay);
  f("queue", w.queue);
  f("lossless", w.lossless);
  f("interface", w.interface);
  f("nic_queues", w.nic_queues);
  f("train", w.train);
  f("datagram", w.datagram);
  f("budget", w.budget);
  f("bookkeeping", w.bookkeeping);
  f("send_queue", w.send_queue);
  f("gathers", w.gathers);
  f("jitter", w.jitter);
  f("wake", w.wake);
  f("command", w.command);
}

template <typename F>
void fields(F& f, PlannedRank& r) {
  f("rank", r.rank);
  f("clock", r.clock);
  f("offset", r.offset);
  f("slow", r.slow);
}

template <typename F>
void fields(F& f, PlannedAggregator& a) {
  f("clock", a.clock);
  f("offset", a.offset);
  f("slow", a.slow);
  f("lanes", a.lanes);
  f("quota", a.quota);
}

template <typename F>
void fields(F& f, PlannedGroup& g) {
  f("ranks", g.ranks);
  f("at", g.at);
  f("ring", g.ring);
  f("callbacks", g.callbacks);
  f("early", g.early);
}

template <typename F>
void fields(F& f, PlannedOp& o) {
  f("group", o.group);
  f("kind", o.kind);
  f("bytes", o.bytes);
  f("splits", o.splits);
  f("root", o.root);
  f("element", o.element);
  f("reduction", o.reduction);
  f("at", o.at);
  f("timeout", o.timeout);
  f("late", o.late);
  f("by", o.by);
  f("odd", o.odd);
  f("odd_bytes", o.odd_bytes);
}

template <typename F>
void fields(F& f, PlannedMessage& m) {
  f("group", m.group);
  f("from", m.from);
  f("to", m.to);
  f("bytes", m.bytes);
  f("tag", m.tag);
  f("any", m.any);
  f("at", m.at);
  f("by", m.by);
  f("timeout", m.timeout);
}

template <typename F>
void fields(F& f, PlannedFault& x) {
  f("what", x.what);
  f("at", x.at);
  f("for", x.length);
  f("rank", x.rank);
  f("peer", x.peer);
  f("group", x.group);
  f("lane", x.lane);
  f("aggregator", x.aggregator);
  f("rate", x.rate);
  f("burst", x.burst);
  f("much", x.much);
  f("every", x.every);
}

// ---- values as text, and back ----

template <typename T>
std::string number_text(T value) {
  std::array<char, 40> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string as_text(uint32_t v) { return v == kNoMember ? "none" : number_text(v); }
std::string as_text(uint64_t v) { return number_text(v); }
std::string as_text(double v) { return number_text(v); }
std::string as_text(const std::string& v) { return v; }
std::string as_text(wire::Kind v) { return wire::kind_name(v); }
std::string as_text(Element v) { return element_name(v); }
std::string as_text(Reduction v) { return reduction_name(v); }
std::string as_text(FaultKind v) { return fault_name(v); }
std::string as_text(Nanos v) {
  if (v == kNever) return "never";
  for (const auto& [unit, name] : {std::pair(kSecond, "s"), {kMilli, "ms"}, {kMicro, "us"}}) {
    if (v % unit == 0) return number_text(v / unit) + name;
  }
  return number_text(v) + "ns";
}
std::string as_text(const std::vector<uint32_t>& v) {
  std::string text;
  for (const uint32_t one : v) text += (text.empty() ? "" : ",") + number_text(one);
  return text;
}

bool from_text(std::string_view text, uint32_t& v) {
  if (text == "none") return v = kNoMember, true;
  return read_number(text, v);
}
bool from_text(std::string_view text, uint64_t& v) { return read_number(text, v); }
bool from_text(std::string_view text, double& v) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  return error == std::errc() && end == text.data() + text.size() && v >= 0 && v < 1e15;
}
bool from_text(std::string_view text, std::string& v) { return v = text, !text.empty(); }
bool from_text(std::string_view text, Nanos& v) {
  if (text == "never") return v = kNever, true;
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) return false;
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const auto& [ns, name] :
       {std::pair(kSecond, "s"), {kMilli, "ms"}, {kMicro, "us"}, {Nanos{1}, "ns"}}) {
    if (unit != name) continue;
    v = static_cast<Nanos>(count) * ns;
    return count <= static_cast<uint64_t>(kNever / 4 / ns);
  }
  return false;
}
bool from_text(std::string_view text, std::vector<uint32_t>& v) {
  v.clear();
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (!read_number(text.substr(0, comma), v.emplace_back())) return false;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return !v.empty();
}
// Enumerators that have names.
template <typename Code>
bool named(std::string_view text, Code& v, unsigned first, unsigned last) {
  for (unsigned c = first; c <= last; c++) {
    if (text == as_text(static_cast<Code>(c))) return v = static_cast<Code>(c), true;
  }
  return false;
}
bool from_text(std::string_view text, wire::Kind& v) { return named(text, v, 1, wire::kKindMax); }
bool from_text(std::string_view text, Element& v) {
  return named(text, v, 1, static_cast<unsigned>(Element::kBool));
}
bool from_text(std::string_view text, Reduction& v) {
  return named(text, v, 1, static_cast<unsigned>(Reduction::kPremulSum));
}
bool from_text(std::string_view text, FaultKind& v) { return named(text, v, 0, kFaultKinds - 1); }

// ---- lines ----

template <typename Item>
std::string line_of(const char* word, const Item& item) {
  std::vector<std::string> defaults;
  const auto note = [&](const char*, auto& value) { defaults.push_back(as_text(value)); };
  Item plain{};
  fields(note, plain);
  std::string text = word;
  size_t i = 0;
  const auto add = [&](const char* name, auto& value) {
    const std::string now = as_text(value);
    if (now != defaults[i++]) text += std::string(" ") + name + "=" + now;
  };
  Item copy = item;
  fields(add, copy);
  return text + "\n";
}

// Sets one field from "name=value"; "" or what is wrong.
template <typename Item>
std::string set_field(Item& item, std::string_view token) {
  const size_t equals = token.find('=');
  if (equals == std::string_view::npos) return "'" + std::string(token) + "' is not name=value";
  const std::string_view name = token.substr(0, equals), value = token.substr(equals + 1);
  bool known = false, read = false;
  const auto set = [&](const char* field, auto& place) {
    if (name != field) return;
    known = true;
    read = from_text(value, place);
  };
  fields(set, item);
  if (!known) return "there is no field '" + std::string(name) + "'";
  return read ? "" : "'" + std::string(value) + "' is not a value of " + std::string(name);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = line.find_first_not_of(" \t\r"); at != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(" \t\r", end);
  }
  return words;
}

template <typename Item>
std::string read_item(const std::vector<std::string_view>& words, Item& item) {
  for (size_t i = 1; i < words.size(); i++) {
    if (std::string wrong = set_field(item, words[i]); !wrong.empty()) return wrong;
  }
  return "";
}

std::string read_setting(const std::vector<std::string_view>& words, Plan& plan) {
  for (size_t i = 1; i < words.size(); i++) {
    const size_t equals = words[i].find('=');
    if (equals == std::string_view::npos) return "'" + std::string(words[i]) + "' is not a setting";
    plan.settings.push_back(
        {std::string(words[i].substr(0, equals)), std::string(words[i].substr(equals + 1))});
  }
  return "";
}

std::string read_line(const std::vector<std::string_view>& words, Plan& plan) {
  const std::string_view what = words[0];
  if (what == "world") return read_item(words, plan.world);
  if (what == "set") return read_setting(words, plan);
  if (what == "rank") return read_item(words, plan.special.emplace_back());
  if (what == "aggregator") return read_item(words, plan.aggregators.emplace_back());
  if (what == "group") return read_item(words, plan.groups.emplace_back());
  if (what == "op") return read_item(words, plan.ops.emplace_back());
  if (what == "message") return read_item(words, plan.messages.emplace_back());
  if (what == "fault") return read_item(words, plan.faults.emplace_back());
  return "'" + std::string(what) +
         "' is not an item: world, set, rank, aggregator, group, op, message, fault";
}

// ---- validity ----

Status bad(const std::string& why) { return {Code::kInvalidArgument, why}; }

Status check_world(const Plan& plan) {
  const PlannedWorld& w = plan.world;
  if (w.hosts < 1 || w.hosts > 1024 || w.ranks < 1 || w.ranks > 64 || plan.ranks() > 1024) {
    return bad("hosts and ranks: 1 to 1024 ranks, at most 64 per host");
  }
  if (w.datagram < 96 || w.datagram > 65440) return bad("datagram: 96 to 65440 bytes");
  if (w.rate < 1e5) return bad("rate: at least 1e5 bytes per second");
  if (w.train < 1 || w.train > 64 || w.nic_queues < 1 || w.nic_queues > 8) {
    return bad("train: 1 to 64; nic_queues: 1 to 8");
  }
  for (const uint64_t limit : {w.queue, w.lossless, w.interface, w.budget, w.send_queue}) {
    // A single packet or datagram must fit, or nothing ever gets through.
    if (limit != 0 && limit < w.datagram + 3000) return bad("a queue holds less than a datagram");
  }
  if (w.budget == 0 || w.send_queue == 0) return bad("budget and send_queue: more than 0");
  if (w.bookkeeping > 4096) return bad("bookkeeping: at most 4096 bytes");
  if (plan.aggregators.size() > 16) return bad("aggregators: at most 16");
  const auto topology = TopologySpec::parse(w.topology, plan.hosts());
  return topology.ok() ? Status() : topology.status();
}

// Rejects settings that a plan cannot use: a world has no store, names its aggregators itself, and
// cannot predict results without some ranks' input.
Status check_setting(const Plan&, const PlannedSetting& setting) {
  for (const char* const name :
       {"partial", "aggregators", "rack", "faults", "secret_file", "trust_store"}) {
    if (setting.name == name) return bad(setting.name + ": not modelled here");
  }
  return {};
}

Status check_group(const Plan& plan, const PlannedGroup& group) {
  const std::set<uint32_t> different(group.ranks.begin(), group.ranks.end());
  if (group.ranks.size() < 2 || different.size() != group.ranks.size()) {
    return bad("group: at least two ranks, none twice");
  }
  return *different.rbegin() < plan.ranks() ? Status() : bad("group: there is no such rank");
}

Status check_op(const Plan& plan, const PlannedOp& op) {
  if (op.group >= plan.groups.size()) return bad("op: there is no such group");
  if (op.splits != 0 && op.kind != wire::Kind::kAllToAll) {
    return bad("op: only an all_to_all has splits");
  }
  const size_t members = plan.groups[op.group].ranks.size();
  if (op.root >= members) return bad("op: the root is not a member of its group");
  for (const uint32_t m : {op.late, op.odd}) {
    if (m != kNoMember && m >= members) return bad("op: late or odd is not a member of its group");
  }
  if (std::max(op.bytes, op.odd_bytes) > (64u << 20)) return bad("op: at most 64 MiB");
  if (!wire::is_reduction(op.kind)) return {};
  if (!reducible(op.element, op.reduction)) return bad("op: no reduction of this element");
  if ((op.bytes | op.odd_bytes) % element_size(op.element) != 0) {
    return bad("op: bytes are not a multiple of the element size");
  }
  return {};
}

Status check_message(const Plan& plan, const PlannedMessage& message) {
  if (message.group >= plan.groups.size()) return bad("message: there is no such group");
  const size_t members = plan.groups[message.group].ranks.size();
  if (std::max(message.from, message.to) >= members || message.from == message.to) {
    return bad("message: from and to are two members of its group");
  }
  return message.bytes > (64u << 20) ? bad("message: at most 64 MiB") : Status();
}

// Checks that each receive has a known send: messages between two members with one tag are sent and
// received in the order of the plan, and a receive from any source has a tag of its own.
Status check_matches(const Plan& plan) {
  for (size_t i = 0; i < plan.messages.size(); i++) {
    const PlannedMessage& a = plan.messages[i];
    for (size_t j = i + 1; j < plan.messages.size(); j++) {
      const PlannedMessage& b = plan.messages[j];
      if (a.group != b.group || a.to != b.to || a.tag != b.tag) continue;
      if (a.any != 0 || b.any != 0)
        return bad("message: a receive from any source needs a tag of its own");
      if (a.from == b.from && (a.at > b.at || a.by > b.by)) {
        return bad("message: messages with one tag must be sent and received in order");
      }
    }
  }
  return {};
}

Status check_aggregator(const Plan&, const PlannedAggregator& a) {
  const bool fits =
      a.clock >= 0.01 && a.clock <= 100 && a.slow >= 1 && a.lanes >= 1 && a.lanes <= 8;
  return fits
             ? Status()
             : bad("aggregator: clock is not 0.01 to 100, slow is below 1, or lanes is not 1 to 8");
}

Status check_of_group(const Plan& plan, const PlannedFault& fault) {
  if (fault.group >= plan.groups.size()) return bad("fault: there is no such group");
  if (fault.what != FaultKind::kAbsent) return {};
  if (plan.world.ranks > 1) return bad("fault: absent ranks need hosts of their own");
  const auto& ranks = plan.groups[fault.group].ranks;
  const bool member = std::count(ranks.begin(), ranks.end(), fault.rank) > 0;
  return member ? Status() : bad("fault: the absent rank is not a member of the group");
}

Status check_fault(const Plan& plan, const PlannedFault& fault) {
  if (fault.rate > 0.9) return bad("fault: rate is at most 0.9");
  if (is_of_aggregator(fault.what)) {
    const bool there = fault.aggregator < plan.aggregators.size();
    return there ? Status() : bad("fault: there is no such aggregator");
  }
  const bool pair = fault.what == FaultKind::kReset, flood = fault.what == FaultKind::kFlood;
  const bool everybody = fault.what == FaultKind::kMute || fault.what == FaultKind::kDelay || flood;
  const bool all = everybody && fault.rank == kNoMember;
  if (!all && fault.rank >= plan.ranks()) return bad("fault: there is no such rank");
  if (fault.peer != kNoMember ? fault.peer >= plan.ranks() : pair) {
    return bad("fault: there is no such peer");
  }
  if ((pair || fault.what == FaultKind::kCut) && fault.peer == fault.rank) {
    return bad("fault: rank and peer are the same");
  }
  if (fault.lane != kNoMember && fault.lane > 1) return bad("fault: lane is 0, 1 or none");
  // Operations may wait for the end of these faults, so without an end their time would be
  // unbounded.
  const bool ends = fault.what == FaultKind::kDelay || fault.what == FaultKind::kRefuse ||
                    fault.what == FaultKind::kForget || flood;
  if (ends && fault.end() == kNever) return bad("fault: this one has to end");
  if (flood && fault.every < 100 * kMicro) return bad("fault: a flood comes every 100 us or more");
  if (fault.what == FaultKind::kAbort || fault.what == FaultKind::kClose ||
      fault.what == FaultKind::kAbsent) {
    if (Status status = check_of_group(plan, fault); !status.ok()) return status;
  }
  constexpr Nanos kLongest = 1'000'000 * kSecond;  // laws add times up
  if (std::max(fault.at, fault.much) > kLongest ||
      (fault.length != kNever && fault.length > kLongest)) {
    return bad("fault: a time is at most a million seconds");
  }
  return fault.burst < 1 || fault.burst > 1000 ? bad("fault: burst is 1 to 1000") : Status();
}

}  // namespace

const char* fault_name(FaultKind kind) { return kFaultNames[static_cast<size_t>(kind)]; }

std::string print(const Plan& plan) {
  std::string text = line_of("world", plan.world);
  for (const auto& setting : plan.settings) {
    text += "set " + setting.name + "=" + setting.value + "\n";
  }
  for (const auto& rank : plan.special) text += line_of("rank", rank);
  for (const auto& one : plan.aggregators) text += line_of("aggregator", one);
  for (const auto& group : plan.groups) text += line_of("group", group);
  for (const auto& op : plan.ops) text += line_of("op", op);
  for (const auto& message : plan.messages) text += line_of("message", message);
  for (const auto& fault : plan.faults) text += line_of("fault", fault);
  return text;
}

Result<Plan> parse(std::string_view text) {
  Plan plan;
  for (size_t number = 1; !text.empty(); number++) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words[0][0] == '#') continue;
    if (const std::string wrong = read_line(words, plan); !wrong.empty()) {
      return bad("line " + std::to_string(number) + ": " + wrong);
    }
  }
  if (Status status = check(plan); !status.ok()) return status;
  return plan;
}

Status check(const Plan& plan) {
  Status status = check_world(plan);
  const auto all = [&](const auto& items, auto one) {
    for (const auto& item : items) {
      if (status.ok()) status = one(plan, item);
    }
  };
  all(plan.special, [](const Plan& p, const PlannedRank& r) {
    const bool fits = r.rank < p.ranks() && r.clock >= 0.01 && r.clock <= 100 && r.slow >= 1;
    return fits ? Status()
                : bad("rank: there is no such rank, clock is not 0.01 to 100, or slow is below 1");
  });
  all(plan.settings, check_setting);
  all(plan.aggregators, check_aggregator);
  all(plan.groups, check_group);
  all(plan.ops, check_op);
  all(plan.messages, check_message);
  if (status.ok()) status = check_matches(plan);
  all(plan.faults, check_fault);
  if (!status.ok()) return status;
  const auto config = config_of(plan);
  return config.ok() ? Status() : config.status();
}

ExchangeShape shape_of(const Plan& plan, const PlannedOp& op, Member caller) {
  const auto members = static_cast<uint32_t>(plan.groups[op.group].ranks.size());
  const uint64_t bytes = caller != kNoMember && op.odd == caller ? op.odd_bytes : op.bytes;
  return {op.kind, members, bytes, op.splits, static_cast<Member>(op.root)};
}

bool is_guarded(const Plan& plan) {
  return std::any_of(plan.settings.begin(), plan.settings.end(), [](const PlannedSetting& s) {
    return s.name == "security" && s.value != "off";
  });
}

bool has_parts(const Plan& plan) {
  const Config config = config_of(plan).value();
  return config.subgroups > 1 || (config.shared_memory != "off" && plan.world.ranks > 1);
}

Result<Config> config_of(const Plan& plan) {
  // Without shared memory unless the plan says otherwise: laws count the traffic on the network.
  std::map<std::string, std::string> overrides{{"shared_memory", "off"}};
  for (const auto& setting : plan.settings) overrides[setting.name] = setting.value;
  return Config::resolve(overrides, {});
}

}  // namespace mcast::sim
