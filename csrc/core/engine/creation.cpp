// Making a group: publish a record, read everybody's, agree on transport and shapes. Ranks that are
// all on one host meet in shared memory; else the group is added to its lanes and probed. Several
// ranks on several hosts also find their neighbours, and if all hosts have as many, lay rails.
#include <algorithm>

#include "base/host.h"
#include "base/random.h"
#include "engine/clock.h"
#include "engine/engine_impl.h"
#include "engine/group_impl.h"
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
  const auto key = [](size_t rank) { return "neighbours/" + std::to_string(rank); };
  const std::string verdict = spec.config.shared_memory == "slots" ? "slots" : meeting.verdict();
  if (Status status = store.set(key(spec.rank), verdict); !status.ok()) return status;
  std::vector<std::string> keys;
  for (size_t r = 0; r < records.size(); r++) keys.push_back(key(r));
  Result<std::vector<std::string>> verdicts =
      store.multi_get(keys, std::max<Nanos>(0, deadline - monotonic_now()));
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

// After the group itself: everybody is there. A rank that dies meanwhile is waited for until the
// liveness limit.
Result<std::unique_ptr<Rails>> Engine::Impl::make_rails(const GroupSpec& spec,
                                                        const Agreement& agreement,
                                                        KeyValueStore& store) {
  const Hosts hosts(agreement.host_of);
  const uint32_t here = hosts.host_of(spec.rank);
  const std::vector<Member>& local = hosts.members(here);
  const auto place =
      static_cast<Member>(std::find(local.begin(), local.end(), spec.rank) - local.begin());
  GroupSpec part = spec;
  part.part = true;
  part.timeout = std::min<Nanos>(spec.timeout, spec.config.liveness_limit + kPartPatience);
  GroupSpec rail = part;
  rail.name += "/rail " + std::to_string(place);
  rail.rank = static_cast<Member>(here);
  rail.size = hosts.count();
  rail.rail = place + 1u;
  rail.rails = static_cast<uint32_t>(local.size());
  Prefixed rail_store(store, "rail" + std::to_string(place) + "/");
  Result<std::shared_ptr<GroupBase>> on_rail = join(rail, rail_store);
  if (!on_rail.ok()) return on_rail.status();
  GroupSpec host = part;
  host.name += "/host " + std::to_string(here);
  host.rank = place;
  host.size = rail.rails;
  host.config.transport = host.config.algorithm = "auto";
  host.config.faults.clear();
  Prefixed host_store(store, "host" + std::to_string(here) + "/");
  Result<std::shared_ptr<GroupBase>> on_host = join(host, host_store);
  if (!on_host.ok()) return on_host.status();
  return std::make_unique<Rails>(hosts, spec.rank, agreement.agreed, std::move(on_rail).value(),
                                 std::move(on_host).value());
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
  const auto key = [](size_t rank) { return "shared/" + std::to_string(rank); };
  std::string verdict = meeting.verdict();
  if (spec.config.shared_memory == "slots" && verdict == "direct") verdict = "slots";
  if (Status status = store.set(key(spec.rank), verdict); !status.ok()) return status;
  std::vector<std::string> keys;
  for (size_t r = 0; r < records.size(); r++) keys.push_back(key(r));
  for (;;) {
    const Nanos now = monotonic_now();
    const Nanos left = std::max<Nanos>(0, deadline - now);
    Result<std::vector<std::string>> verdicts = store.multi_get(keys, std::min(left, kMeetingStep));
    if (verdicts.ok()) {
      bool direct = false;
      const std::string problem = HostMeeting::unite(verdicts.value(), direct);
      if (!problem.empty()) {
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
    if (verdicts.status().code() != Code::kTimeout || left == 0) {
      return verdicts.status().with_context("waiting for all ranks to find their shared memory");
    }
    if (Status status = meeting.look_after(monotonic_now(), spec.config.liveness_limit);
        !status.ok()) {
      return status;
    }
  }
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
  mine.salt = job_salt();
  mine.agreed = spec.config.agreed_text();
  Result<HostMeeting> meeting = prepare_meeting(spec);
  if (meeting.ok()) mine.shared = meeting->address().encode();
  mine.network = network_reason(spec);
  mine.verbs = verbs_problem_of(spec.config);
  mine.transport = only_verbs ? "verbs" : "udp";
  Result<Lanes> made = Status(Code::kUnavailable, mine.verbs);
  if (!only_verbs || mine.verbs.empty()) made = lanes_for(spec.config, only_verbs);
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
    Result<Lanes> verbs = lanes_for(spec.config, true);
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
  } else if (agreement->hosts < spec.size && meeting.ok()) {
    Result<HostReader> reader = neighbours(*meeting, spec, *records, *agreement, deadline, store);
    if (!reader.ok()) return reader.status().with_context("creating group '" + spec.name + "'");
    rails = *reader && Hosts(agreement->host_of).even();
    group->fold_on_hosts(std::move(reader).value());
  }
  if (Status status = group->open(agreement.value(), deadline, spec.interrupted); !status.ok())
    return status;
  if (rails) {
    Result<std::unique_ptr<Rails>> laid = make_rails(spec, *agreement, store);
    if (!laid.ok()) return laid.status().with_context("creating group '" + spec.name + "'");
    group->lay_rails(std::move(laid).value());
  }
  return std::shared_ptr<GroupBase>(group);
}

}  // namespace mcast
