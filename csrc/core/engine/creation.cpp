// Making a group: publish a record, read everybody's, agree on transport and shapes. Ranks that are
// all on one host meet in shared memory; else the group is added to its lanes and probed. Several
// ranks on several hosts also find their neighbours, and if all hosts have as many, lay rails.
#include <algorithm>

#include "base/host.h"
#include "base/random.h"
#include "engine/clock.h"
#include "engine/engine_impl.h"
#include "engine/group_impl.h"
#include "engine/rails.h"
#include "engine/subgroups.h"
#include "engine/transport_choice.h"

namespace mcast {
namespace {

constexpr Nanos kMeetingStep = 200 * kMilli;   // between looks at the other ranks' processes
constexpr Nanos kPartPatience = 10 * kSecond;  // for ranks that were all there a moment ago

// A part of a group uses its store, with keys of its own.
class Prefixed final : public KeyValueStore {
 public:
  Prefixed(KeyValueStore& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  Status set(const std::string& key, const std::string& value) override {
    return store_.set(prefix_ + key, value);
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    return store_.multi_get(full, timeout);
  }

 private:
  KeyValueStore& store_;
  const std::string prefix_;
};

// Why a group takes the network even if all its ranks are on one host; empty: it need not.
std::string network_reason(const GroupSpec& spec) {
  const Config& c = spec.config;
  if (c.shared_memory == "off") return "shared_memory is off";
  if (c.transport != "auto") return "the transport " + c.transport + " was asked for";
  if (c.algorithm != "auto") return "the algorithm " + c.algorithm + " was asked for";
  if (!c.faults.empty()) return "faults are injected into the network path";
  if (spec.size > kHostMembers) return "the group is too large";
  return "";
}

// Where the ranks' memory is found; nothing if one of them has told none, which all see alike.
Result<std::vector<HostAddress>> addresses_of(const std::vector<RankRecord>& records) {
  std::vector<HostAddress> addresses(records.size());
  for (size_t r = 0; r < records.size(); r++) {
    if (!HostAddress::decode(records[r].shared, addresses[r])) {
      return Status(Code::kMismatch, "the rendezvous record of rank " + std::to_string(r) +
                                         " cannot be read; all ranks must use backend mcast of "
                                         "the same version");
    }
    if (addresses[r].pid == 0) return std::vector<HostAddress>();
  }
  return addresses;
}

// Made after the group itself: everybody is there. A rank that dies meanwhile is waited for until
// about the liveness limit.
GroupSpec part_of(const GroupSpec& spec) {
  GroupSpec part = spec;
  part.part = true;
  const Nanos limit = spec.config.liveness_limit + spec.config.probe_timeout + kPartPatience;
  part.timeout = std::min<Nanos>(spec.timeout, limit);
  return part;
}

// Tells all ranks what the meeting has come to here, and returns what all have said. Those that it
// has found are looked after meanwhile.
Result<std::vector<std::string>> exchange_verdicts(HostMeeting& meeting, const GroupSpec& spec,
                                                   const std::string& prefix, Nanos deadline,
                                                   KeyValueStore& store) {
  const std::string& found = meeting.verdict();
  const bool slots = spec.config.shared_memory == "slots" && found == "direct";
  if (Status status = store.set(prefix + std::to_string(spec.rank), slots ? "slots" : found);
      !status.ok()) {
    return status;
  }
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < spec.size; r++) keys.push_back(prefix + std::to_string(r));
  for (;;) {
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
    Result<std::vector<std::string>> verdicts = store.multi_get(keys, std::min(left, kMeetingStep));
    if (verdicts.ok() || verdicts.status().code() != Code::kTimeout || left == 0) return verdicts;
    if (Status status = meeting.look_after(monotonic_now(), spec.config.liveness_limit);
        !status.ok()) {
      return status;
    }
  }
}

}  // namespace

Result<HostMeeting> Engine::Impl::prepare_meeting(const GroupSpec& spec) {
  if (spec.config.shared_memory == "off") {
    return Status(Code::kUnavailable, "shared_memory is off");
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (!hub) {
    Result<std::unique_ptr<HostHub>> made = HostHub::make();
    if (!made.ok()) return made.status();
    hub = std::move(made).value();
  }
  return HostMeeting::prepare(spec, *hub, network_reason(spec).empty());
}

// Ranks that share a host, in a group of several. Empty: some of them cannot read each other's
// memory; all ranks come to the same.
Result<HostReader> Engine::Impl::neighbours(HostMeeting& meeting, const GroupSpec& spec,
                                            const std::vector<RankRecord>& records,
                                            const Agreement& agreement, Nanos deadline,
                                            KeyValueStore& store) {
  Result<std::vector<HostAddress>> addresses = addresses_of(records);
  if (!addresses.ok()) return addresses.status();
  if (addresses->empty()) return HostReader();
  {
    std::lock_guard<std::mutex> lock(mutex);
    meeting.attach_neighbours(*addresses, agreement.host_of, spec, *hub);
  }
  // All have published a record: none is waited for longer than a silent one.
  const Nanos limit = monotonic_now() + spec.config.liveness_limit + kPartPatience;
  Result<std::vector<std::string>> verdicts =
      exchange_verdicts(meeting, spec, "neighbours/", std::min(deadline, limit), store);
  if (!verdicts.ok()) {
    return verdicts.status().with_context("waiting for all ranks to find those on their hosts");
  }
  bool direct = false;
  const std::string problem = HostMeeting::unite(*verdicts, direct);
  if (!problem.empty()) {
    log(LogLevel::kWarn, "group '%s': every rank contributes to reductions by itself: %s",
        spec.name.c_str(), problem.c_str());
  }
  return problem.empty() && direct ? meeting.reader() : HostReader();
}

Result<std::shared_ptr<GroupBase>> Engine::Impl::join_part(const GroupSpec& spec,
                                                           KeyValueStore& store) {
  Result<std::shared_ptr<GroupBase>> made = join(spec, store);
  if (!made.ok()) return made;
  std::lock_guard<std::mutex> lock(mutex);
  parts.erase(std::remove_if(parts.begin(), parts.end(), [](const auto& g) { return g.expired(); }),
              parts.end());
  parts.push_back(*made);
  return made;
}

Result<std::unique_ptr<Split>> Engine::Impl::make_rails(const GroupSpec& spec,
                                                        const Agreement& agreement,
                                                        KeyValueStore& store) {
  const Hosts hosts(agreement.host_of);
  const uint32_t here = hosts.host_of(spec.rank);
  const std::vector<Member>& local = hosts.members(here);
  const auto place =
      static_cast<Member>(std::find(local.begin(), local.end(), spec.rank) - local.begin());
  GroupSpec rail = part_of(spec);
  rail.name += "/rail " + std::to_string(place);
  rail.rank = static_cast<Member>(here);
  rail.size = hosts.count();
  rail.rail = place + 1u;
  rail.rails = static_cast<uint32_t>(local.size());
  Prefixed rail_store(store, "rail" + std::to_string(place) + "/");
  Result<std::shared_ptr<GroupBase>> on_rail = join_part(rail, rail_store);
  if (!on_rail.ok()) return on_rail.status();
  GroupSpec host = part_of(spec);
  host.name += "/host " + std::to_string(here);
  host.rank = place;
  host.size = rail.rails;
  host.config.transport = host.config.algorithm = "auto";
  host.config.faults.clear();
  Prefixed host_store(store, "host" + std::to_string(here) + "/");
  Result<std::shared_ptr<GroupBase>> on_host = join_part(host, host_store);
  if (!on_host.ok()) return on_host.status();
  return std::unique_ptr<Split>(std::make_unique<Rails>(
      hosts, spec.rank, agreement.agreed, std::move(on_rail).value(), std::move(on_host).value()));
}

Result<std::unique_ptr<Split>> Engine::Impl::make_subgroups(const GroupSpec& spec,
                                                            KeyValueStore& store) {
  const auto count = static_cast<uint32_t>(spec.config.subgroups);
  std::vector<std::shared_ptr<GroupBase>> subgroups;
  for (uint32_t i = 1; i <= count; i++) {
    GroupSpec part = part_of(spec);
    part.name += "/sub " + std::to_string(i - 1);
    part.rail = i;
    part.rails = count;
    part.lane = i;
    Prefixed part_store(store, "sub" + std::to_string(i - 1) + "/");
    Result<std::shared_ptr<GroupBase>> made = join_part(part, part_store);
    if (!made.ok()) return made.status();
    subgroups.push_back(std::move(made).value());
  }
  return std::unique_ptr<Split>(std::make_unique<Subgroups>(std::move(subgroups)));
}

// Null: some rank cannot, the network path is taken; all ranks come to the same.
Result<std::shared_ptr<GroupBase>> Engine::Impl::meet(HostMeeting& meeting, const GroupSpec& spec,
                                                      const std::vector<RankRecord>& records,
                                                      Nanos deadline, KeyValueStore& store) {
  for (const RankRecord& r : records) {
    if (!r.network.empty()) return std::shared_ptr<GroupBase>();
  }
  Result<std::vector<HostAddress>> addresses = addresses_of(records);
  if (!addresses.ok()) return addresses.status();
  if (addresses->empty()) return std::shared_ptr<GroupBase>();
  {
    std::lock_guard<std::mutex> lock(mutex);
    meeting.attach(*addresses, spec, *hub);
  }
  Result<std::vector<std::string>> verdicts =
      exchange_verdicts(meeting, spec, "shared/", deadline, store);
  if (!verdicts.ok()) {
    return verdicts.status().with_context("waiting for all ranks to find their shared memory");
  }
  bool direct = false;
  if (const std::string problem = HostMeeting::unite(*verdicts, direct); !problem.empty()) {
    log(LogLevel::kWarn, "group '%s' uses the network between ranks of one host: %s",
        spec.name.c_str(), problem.c_str());
    return std::shared_ptr<GroupBase>();
  }
  std::shared_ptr<GroupBase> group =
      std::make_shared<HostGroup>(spec, *hub, meeting.take(), direct, traced(spec));
  log(LogLevel::kInfo, "group '%s': rank %u of %u on this host, %s", spec.name.c_str(),
      unsigned{spec.rank}, spec.size, group->stats().transport.c_str());
  return group;
}

Result<std::shared_ptr<GroupBase>> Engine::Impl::join(const GroupSpec& spec, KeyValueStore& store) {
  const Nanos start = monotonic_now();
  const Nanos deadline = start + std::min<Nanos>(spec.timeout, kNever / 2);
  const std::string context = "group '" + spec.name + "'";
  const bool only_verbs = spec.config.transport == "verbs";

  RankRecord mine;
  mine.version = version();
  mine.protocol = kProtocolVersion;
  mine.host = host_id();
  mine.host_name = host_name();
  mine.random = secure_random64();
  {
    std::lock_guard<std::mutex> lock(mutex);
    mine.salt = salt.value(job_salt());
  }
  mine.agreed = spec.config.agreed_text();
  Result<HostMeeting> meeting = prepare_meeting(spec);
  if (meeting.ok()) mine.shared = meeting->address().encode();
  mine.network = network_reason(spec);
  mine.verbs = verbs_problem_of(spec.config);
  mine.transport = only_verbs ? "verbs" : "udp";
  Result<Lanes> made = Status(Code::kUnavailable, mine.verbs);
  if (!only_verbs || mine.verbs.empty()) made = lanes_for(spec.config, only_verbs, spec.lane);
  // Without verbs where only verbs will do, the others are told why before this rank gives up.
  if (!made.ok() && !only_verbs) return made.status().with_context(context);
  if (!made.ok()) mine.verbs = made.status().message();
  const Status closed(Code::kClosed, context + ": the engine is shut down");
  if (made.ok() && !describe_lanes(*made, mine)) return closed;
  Result<std::vector<RankRecord>> records = exchange(spec, store, "rank", mine, start, deadline);
  if (!records.ok()) return records.status().with_context(context);
  Result<TransportChoice> choice = choose_transport(*records, spec.config.transport);
  if (!choice.ok()) return choice.status().with_context(context);
  if (choice->verbs && !only_verbs) {
    // All have a device: now the endpoints on it, which may yet fail (locked memory).
    Result<Lanes> verbs = lanes_for(spec.config, true, spec.lane);
    if (!verbs.ok()) {
      mine.verbs = verbs.status().message();
    } else if (!describe_lanes(*verbs, mine)) {
      return closed;
    }
    Result<std::vector<RankRecord>> second = exchange(spec, store, "verbs", mine, start, deadline);
    if (!second.ok()) return second.status().with_context(context);
    choice = choose_transport(*second, spec.config.transport);
    if (choice->verbs) {
      made = std::move(verbs);
      records = std::move(second);
    }
  }
  Result<Agreement> agreement =
      agree(*records, spec.rank, spec.config, 64u << 10, spec.rail, spec.rails);
  if (!agreement.ok()) return agreement.status().with_context(context);
  {
    std::lock_guard<std::mutex> lock(mutex);
    salt.adopt((*records)[0].salt);
  }
  if (agreement->hosts == 1 && meeting.ok()) {
    Result<std::shared_ptr<GroupBase>> met = meet(*meeting, spec, *records, deadline, store);
    if (!met.ok()) return met.status().with_context("creating group '" + spec.name + "'");
    if (met.value() != nullptr) return met;
  }
  auto group = std::make_shared<GroupImpl>(spec, (*made)[0], (*made)[1]);
  group->observe(arrived, traced(spec));
  group->explain_transport(choice->reason);
  bool rails = false;
  if (agreement->hosts == 1) {
    if (const std::string why = meeting.ok() ? mine.network : meeting.status().message();
        !why.empty()) {
      group->shares_not(why);
    }
  } else if (agreement->hosts < spec.size && meeting.ok() && !spec.part) {
    Result<HostReader> reader = neighbours(*meeting, spec, *records, *agreement, deadline, store);
    if (!reader.ok()) return reader.status().with_context("creating group '" + spec.name + "'");
    rails = *reader && Hosts(agreement->host_of).even();
    group->fold_on_hosts(std::move(reader).value());
  }
  if (Status status = group->open(agreement.value(), deadline, spec.interrupted); !status.ok())
    return status;
  if (rails || (agreement->hosts > 1 && spec.config.subgroups > 1 && !spec.part)) {
    Result<std::unique_ptr<Split>> split =
        rails ? make_rails(spec, *agreement, store) : make_subgroups(spec, store);
    if (!split.ok()) return split.status().with_context("creating group '" + spec.name + "'");
    group->split(std::move(split).value());
  }
  return std::shared_ptr<GroupBase>(group);
}

}  // namespace mcast
