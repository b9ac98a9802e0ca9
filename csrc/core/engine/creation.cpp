// Making a group: all ranks introduce themselves and agree on transport and shapes. Ranks that are
// all on one host meet in shared memory; else the group is added to its lanes and probed. Several
// ranks on several hosts also find their neighbours, and if all hosts have as many, lay rails.
#include <algorithm>

#include "base/host.h"
#include "base/random.h"
#include "engine/clock.h"
#include "engine/connection_room.h"
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

// Where the memory of the ranks on our host is found, by rank; `introduced` is the round of their
// records.
Result<std::vector<HostAddress>> addresses_near(Round& introduced, Member self,
                                                const std::vector<uint32_t>& host_of,
                                                Nanos timeout) {
  std::vector<Member> near;
  for (size_t r = 0; r < host_of.size(); r++) {
    if (host_of[r] == host_of[self]) near.push_back(static_cast<Member>(r));
  }
  Result<std::vector<std::string>> texts = introduced.answers(near, timeout);
  if (!texts.ok()) return texts.status();
  std::vector<HostAddress> addresses(host_of.size());
  for (size_t i = 0; i < near.size(); i++) {
    Result<RankRecord> record = RankRecord::decode((*texts)[i]);
    if (record.ok() && HostAddress::decode(record->shared, addresses[near[i]])) continue;
    return Status(Code::kMismatch, "the rendezvous record of rank " + std::to_string(near[i]) +
                                       " cannot be read; all ranks must use backend mcast of "
                                       "the same version");
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

// Tells what the meeting has come to here, and returns what follows for all. Those that it has
// found are looked after meanwhile.
Result<std::string> exchange_verdicts(Attachment& meeting, const GroupSpec& spec,
                                      const std::string& prefix, const std::string& doing,
                                      Nanos deadline, KeyValueStore& store) {
  const std::string& found = meeting.verdict();
  const bool slots = spec.config.shared_memory == "slots" && found == "direct";
  Round round(store, prefix, spec.rank, spec.size);
  if (Status status = round.say(slots ? "slots" : found); !status.ok()) return status;
  const auto unite = [](const std::vector<std::string>& verdicts) -> Result<std::string> {
    bool direct = false;
    const std::string problem = Attachment::unite(verdicts, direct);
    return !problem.empty() ? problem : std::string(direct ? "direct" : "slots");
  };
  for (;;) {
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
    Result<std::string> verdict = round.hear(std::min(left, kMeetingStep), unite);
    if (verdict.ok() || round.over()) return verdict;
    if (verdict.status().code() != Code::kTimeout || left == 0) {
      return round.give_up(verdict.status(), doing);
    }
    if (Status status = meeting.look_after(monotonic_now(), spec.config.liveness_limit);
        !status.ok()) {
      return round.give_up(status, doing);
    }
  }
}

}  // namespace

Result<Attachment> Engine::Impl::prepare_meeting(const GroupSpec& spec) {
  if (spec.config.shared_memory == "off") {
    return Status(Code::kUnavailable, "shared_memory is off");
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (!hub) {
    Result<std::unique_ptr<PeerRegistry>> made = PeerRegistry::make(monotonic_now);
    if (!made.ok()) return made.status();
    hub = std::move(made).value();
  }
  return Attachment::prepare(spec.rank, spec.size, *hub, network_reason(spec).empty());
}

// Ranks that share a host, in a group of several. Empty: some of them cannot read each other's
// memory; all ranks come to the same.
Result<HostReader> Engine::Impl::neighbours(Attachment& meeting, const GroupSpec& spec,
                                            Round& introduced, const Agreement& agreement,
                                            Nanos deadline, KeyValueStore& store) {
  Result<std::vector<HostAddress>> addresses =
      addresses_near(introduced, spec.rank, agreement.host_of, deadline - monotonic_now());
  if (!addresses.ok()) return addresses.status();
  {
    std::lock_guard<std::mutex> lock(mutex);
    meeting.attach_neighbours(*addresses, agreement.host_of, *hub);
  }
  // All have published a record: none is waited for longer than a silent one.
  const Nanos limit = monotonic_now() + spec.config.liveness_limit + kPartPatience;
  Result<std::string> verdict = exchange_verdicts(
      meeting, spec, "neighbours", "waiting for all ranks to find those on their hosts",
      std::min(deadline, limit), store);
  if (!verdict.ok()) return verdict.status();
  bool direct = false;
  const std::string problem = Attachment::unite({*verdict}, direct);
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
Result<std::shared_ptr<GroupBase>> Engine::Impl::meet(Attachment& meeting, const GroupSpec& spec,
                                                      Round& introduced, Nanos deadline,
                                                      KeyValueStore& store) {
  Result<std::vector<HostAddress>> addresses = addresses_near(
      introduced, spec.rank, std::vector<uint32_t>(spec.size), deadline - monotonic_now());
  if (!addresses.ok()) return addresses.status();
  {
    std::lock_guard<std::mutex> lock(mutex);
    meeting.attach(*addresses, *hub);
  }
  Result<std::string> verdict =
      exchange_verdicts(meeting, spec, "shared",
                        "waiting for all ranks to find their shared memory", deadline, store);
  if (!verdict.ok()) return verdict.status();
  bool direct = false;
  if (const std::string problem = Attachment::unite({*verdict}, direct); !problem.empty()) {
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

RankRecord Engine::Impl::describe_self(const GroupSpec& spec, const Result<Attachment>& meeting) {
  RankRecord mine;
  mine.version = version();
  mine.protocol = kProtocolVersion;
  mine.host = host_id();
  mine.host_name = host_name();
  mine.random = secure_random64();
  mine.agreed = spec.config.agreed_text();
  if (meeting.ok()) mine.shared = meeting->address().encode();
  mine.network = network_reason(spec);
  mine.verbs = verbs_problem_of(spec.config);
  mine.transport = spec.config.transport == "verbs" ? "verbs" : "udp";
  std::lock_guard<std::mutex> lock(mutex);
  mine.salt = salt.value(job_salt());
  return mine;
}

// Lanes, and who is where on which of them. With a choice of transports, that comes second: once
// all have a device, all make their endpoints on it.
Result<Roster> Engine::Impl::introduce_on(Lanes& on, const GroupSpec& spec, RankRecord& mine,
                                          Round& introduced, Nanos deadline, KeyValueStore& store) {
  const Nanos start = monotonic_now();
  const bool only_verbs = spec.config.transport == "verbs";
  Result<Lanes> made = Status(Code::kUnavailable, mine.verbs);
  if (!only_verbs || mine.verbs.empty()) made = lanes_for(spec.config, only_verbs, spec.lane);
  // Without verbs where only verbs will do, the others are told why before this rank gives up.
  if (!made.ok() && !only_verbs) return made.status();
  if (!made.ok()) mine.verbs = made.status().message();
  const Status closed(Code::kClosed, "the engine is shut down");
  if (made.ok() && !describe_lanes(*made, mine)) return closed;
  std::vector<RankRecord> records;
  Result<Roster> roster = introduce(spec, introduced, mine, start, deadline, records);
  if (!roster.ok()) return roster;
  if (made.ok()) on = *made;
  if (!roster->again) return roster;
  Result<Lanes> verbs = lanes_for(spec.config, true, spec.lane);
  if (!verbs.ok()) {
    mine.verbs = verbs.status().message();
  } else if (!describe_lanes(*verbs, mine)) {
    return closed;
  }
  Round second(store, "verbs", spec.rank, spec.size);
  roster = introduce(spec, second, mine, start, deadline, records);
  if (roster.ok() && roster->verbs) on = *verbs;
  return roster;
}

Result<std::shared_ptr<GroupBase>> Engine::Impl::join(const GroupSpec& spec, KeyValueStore& store) {
  const Nanos deadline = monotonic_now() + std::min<Nanos>(spec.timeout, kNever / 2);
  const std::string creating = "creating group '" + spec.name + "'";
  Result<Attachment> meeting = prepare_meeting(spec);
  RankRecord mine = describe_self(spec, meeting);
  Round introduced(store, "rank", spec.rank, spec.size);
  Lanes on;
  Result<Roster> roster = introduce_on(on, spec, mine, introduced, deadline, store);
  if (!roster.ok()) return roster.status().with_context("group '" + spec.name + "'");
  const Agreement agreement = agreement_of(*roster, spec.rank, spec.config, 64u << 10, spec.rails);
  {
    std::lock_guard<std::mutex> lock(mutex);
    salt.adopt(roster->salt);
  }
  if (agreement.hosts == 1 && meeting.ok() && roster->shared && roster->network.empty()) {
    Result<std::shared_ptr<GroupBase>> met = meet(*meeting, spec, introduced, deadline, store);
    if (!met.ok()) return met.status().with_context(creating);
    if (met.value() != nullptr) return met;
  }
  if (!roster->verbs) {
    make_connection_room(
        spec.name, spec.size,
        connections_of(spec.size, stripes_of(mine.external), stripes_of(mine.reduce_external)));
  }
  auto group = std::make_shared<GroupImpl>(spec, on[0], on[1]);
  group->observe(arrived, traced(spec));
  group->explain_transport(roster->transport_reason);
  bool rails = false;
  if (agreement.hosts == 1) {
    if (const std::string why = meeting.ok() ? mine.network : meeting.status().message();
        !why.empty()) {
      group->shares_not(why);
    }
  } else if (agreement.hosts < spec.size && roster->shared && !spec.part) {
    Result<HostReader> reader = neighbours(*meeting, spec, introduced, agreement, deadline, store);
    if (!reader.ok()) return reader.status().with_context(creating);
    rails = *reader && Hosts(agreement.host_of).even();
    group->fold_on_hosts(std::move(reader).value());
  }
  if (Status status = group->open(agreement, deadline, spec.interrupted); !status.ok())
    return status;
  if (rails || (agreement.hosts > 1 && spec.config.subgroups > 1 && !spec.part)) {
    Result<std::unique_ptr<Split>> split =
        rails ? make_rails(spec, agreement, store) : make_subgroups(spec, store);
    if (!split.ok()) return split.status().with_context(creating);
    group->split(std::move(split).value());
  }
  return std::shared_ptr<GroupBase>(group);
}

}  // namespace mcast
