// One engine per process: lanes by the settings that their sockets depend on, made at first use and
// kept, so that groups are cheap. A lane that has lost a peer can never talk to that process again
// (neither side would know what the other had received), so the next group gets a fresh one, with
// new sockets and a new identity; the worn one ends when its last group is gone. Making a group is:
// publish a record, read everybody's, agree, join, probe. The engine is leaked on purpose (nothing
// of it may be destroyed while other threads run at exit); shutdown() is called by the host
// language's exit hook. After fork() the child closes the descriptors it inherited and starts with
// an engine of its own.
#include "engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/host.h"
#include "base/random.h"
#include "engine/clock.h"
#include "engine/fault_classifier.h"
#include "engine/group_impl.h"
#include "engine/host_group.h"
#include "engine/introduction.h"
#include "engine/transport_choice.h"
#include "transport/interceptor.h"
#include "transport/udp/udp_transport.h"
#include "transport/verbs/verbs_transport.h"

#ifndef MCAST_VERSION
#error "MCAST_VERSION comes from CMake"
#endif

namespace mcast {

const char* version() noexcept { return MCAST_VERSION; }

struct Engine::Impl {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<LaneThread>> lanes;
  std::vector<std::shared_ptr<LaneThread>> worn;  // replaced in `lanes`; groups may still use them
  std::vector<std::weak_ptr<GroupBase>> groups;
  bool down = false;
  // Of all multicast lanes together: they share the link.
  std::shared_ptr<std::atomic<uint64_t>> arrived = std::make_shared<std::atomic<uint64_t>>(0);
  std::shared_ptr<Trace> trace;
  std::shared_ptr<Trace> traced(const GroupSpec& spec) const { return spec.part ? nullptr : trace; }
  std::unique_ptr<HostHub> hub;  // from the first group on that may use shared memory

  Result<std::shared_ptr<LaneThread>> lane_for(const Config& config, size_t lane, bool verbs);
  Result<Lanes> lanes_for(const Config& config, bool verbs);
  // Empty, or why verbs does not work here. Asked once per set of settings.
  std::string verbs_problem_of(const Config& config);
  std::map<std::string, std::string> verbs_problems;
  void sweep_worn();
  Result<HostMeeting> prepare_meeting(const GroupSpec& spec);
  Result<HostReader> neighbours(HostMeeting& meeting, const GroupSpec& spec,
                                const std::vector<RankRecord>& records, const Agreement& agreement,
                                Nanos deadline, KeyValueStore& store);
  Result<std::unique_ptr<Rails>> make_rails(const GroupSpec& spec, const Agreement& agreement,
                                            KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> meet(HostMeeting& meeting, const GroupSpec& spec,
                                          const std::vector<RankRecord>& records, Nanos deadline,
                                          KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> join(const GroupSpec& spec, KeyValueStore& store);
};

namespace {

constexpr Nanos kMeetingStep = 200 * kMilli;   // between looks at the other ranks' processes
constexpr Nanos kPartPatience = 10 * kSecond;  // for ranks that were all there a moment ago
constexpr Nanos kWornPatience = 500 * kMilli;  // for the goodbye to peers that are still there

// Guarded by the atfork handlers, so that a child never inherits it locked.
std::mutex* const g_mutex = new std::mutex;
Engine* g_engine = nullptr;
Engine::Impl* g_impl = nullptr;

void before_fork() {
  g_mutex->lock();
  if (g_impl != nullptr) g_impl->mutex.lock();
}

void after_fork_in_parent() {
  if (g_impl != nullptr) g_impl->mutex.unlock();
  g_mutex->unlock();
}

void after_fork_in_child() {
  if (g_impl != nullptr) {
    for (const auto& [key, lane] : g_impl->lanes) lane->abandon_after_fork();
    for (const auto& lane : g_impl->worn) lane->abandon_after_fork();
    if (g_impl->hub) g_impl->hub->abandon_after_fork();
    g_impl->mutex.unlock();
  }
  // The parent's engine stays in memory, untouched: its threads do not exist here.
  g_engine = nullptr;
  g_impl = nullptr;
  g_mutex->unlock();
}

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

// The settings that sockets and threads depend on.
std::string lane_key(const Config& config) {
  std::string key;
  for (const char* name : {"interface", "ib_hca", "probe_timeout", "faults", "max_mtu", "rcvbuf",
                           "sndbuf", "ttl", "liveness_limit", "pin"}) {
    key += config.get(name) + "\n";
  }
  return key;
}

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

// So that XPS gives each lane a transmit queue of its own.
int pin_cpu(const Config& config, size_t lane) {
  const auto cpus = static_cast<int>(std::thread::hardware_concurrency());
  const char* local = getenv("LOCAL_WORLD_SIZE");
  const char* rank = getenv("LOCAL_RANK");
  const int lanes = int{kLanes} * (local != nullptr ? std::max(1, atoi(local)) : 1);
  if (config.pin == 0 || cpus < lanes) return -1;
  return (int{kLanes} * (rank != nullptr ? std::max(0, atoi(rank)) : 0) + static_cast<int>(lane)) %
         cpus;
}

}  // namespace

Engine::Engine() : impl_(new Impl) {}

Engine& Engine::instance() {
  static std::once_flag once;
  std::call_once(once,
                 [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
  std::lock_guard<std::mutex> lock(*g_mutex);
  if (g_engine == nullptr) {
    g_engine = new Engine;
    g_impl = g_engine->impl_;
  }
  return *g_engine;
}

// Ends the worn lanes that no group uses any more. `mutex` held.
void Engine::Impl::sweep_worn() {
  for (size_t i = 0; i < worn.size();) {
    if (worn[i].use_count() > 1) {
      i++;
      continue;
    }
    worn[i]->stop(kWornPatience);
    worn.erase(worn.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Result<std::shared_ptr<LaneThread>> Engine::Impl::lane_for(const Config& config, size_t index,
                                                           bool verbs) {
  const std::string key =
      lane_key(config) + (verbs ? "verbs" : "udp") + " lane " + std::to_string(index);
  std::lock_guard<std::mutex> lock(mutex);
  if (down) return Status(Code::kClosed, "the engine is shut down");
  if (const auto it = lanes.find(key); it != lanes.end()) {
    if (!it->second->worn()) return it->second;
    worn.push_back(it->second);
    lanes.erase(it);
  }
  sweep_worn();
  Result<std::unique_ptr<Transport>> made =
      verbs ? make_verbs_transport(VerbsOptions::from(config, index))
            : make_udp_transport(UdpTransportOptions::from(config, index));
  if (!made.ok()) return made.status();
  Result<std::unique_ptr<Transport>> wrapped =
      intercept(std::move(made).value(), config.faults, &wire_fault_classifier());
  if (!wrapped.ok()) return wrapped.status().with_context("setting faults (MCAST_FAULTS)");
  auto lane = std::make_shared<LaneThread>(
      std::move(wrapped).value(),
      (index == 0 ? "mcast-lane" : "mcast-red") + std::to_string(lanes.size() / kLanes),
      pin_cpu(config, index), index == 0 ? arrived : nullptr);
  log(LogLevel::kInfo, "%s lane: transport %s", index == 0 ? "multicast" : "reduce",
      lane->description().c_str());
  lanes[key] = lane;
  return lane;
}

Result<Lanes> Engine::Impl::lanes_for(const Config& config, bool verbs) {
  Lanes made;
  for (size_t i = 0; i < kLanes; i++) {
    Result<std::shared_ptr<LaneThread>> lane = lane_for(config, i, verbs);
    if (!lane.ok()) return lane.status();
    made[i] = std::move(lane).value();
  }
  return made;
}

std::string Engine::Impl::verbs_problem_of(const Config& config) {
  const std::string key = config.transport + "\n" + lane_key(config);
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = verbs_problems.find(key);
  if (it != verbs_problems.end()) return it->second;
  return verbs_problems[key] = verbs_problem(config);
}

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

Result<std::shared_ptr<Group>> Engine::create_group(const GroupSpec& spec, KeyValueStore& store) {
  if (spec.size == 0 || spec.size >= kNoMember || spec.rank >= spec.size) {
    return Status(Code::kInvalidArgument, "group '" + spec.name + "': rank " +
                                              std::to_string(spec.rank) + " of " +
                                              std::to_string(spec.size));
  }
  if (const auto level = parse_log_level(spec.config.debug)) set_log_level(*level);
  // Also where one rank needs no transport: a bad text should not wait for the second rank.
  if (const auto rules = parse_faults(spec.config.faults, &wire_fault_classifier()); !rules.ok()) {
    return rules.status().with_context("setting faults (MCAST_FAULTS)");
  }
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (!impl_->trace) impl_->trace = std::make_shared<Trace>(spec.config.trace);
  }
  std::shared_ptr<GroupBase> group;
  if (spec.size == 1) {
    group = std::make_shared<GroupImpl>(spec, nullptr, nullptr);
  } else {
    Result<std::shared_ptr<GroupBase>> made = impl_->join(spec, store);
    if (!made.ok()) return made.status();
    group = std::move(made).value();
  }
  std::lock_guard<std::mutex> lock(impl_->mutex);
  auto& groups = impl_->groups;
  groups.erase(
      std::remove_if(groups.begin(), groups.end(), [](const auto& g) { return g.expired(); }),
      groups.end());
  groups.push_back(group);
  return std::shared_ptr<Group>(group);
}

std::vector<TraceEvent> Engine::trace() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->trace ? impl_->trace->events() : std::vector<TraceEvent>();
}

std::vector<std::shared_ptr<Group>> Engine::groups() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  std::vector<std::shared_ptr<Group>> live;
  for (const auto& weak : impl_->groups) {
    if (auto group = weak.lock()) live.push_back(std::move(group));
  }
  return live;
}

void Engine::shutdown(bool give_up) {
  std::vector<std::shared_ptr<GroupBase>> live;
  std::vector<std::shared_ptr<LaneThread>> lanes;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->down) return;
    impl_->down = true;
    for (const auto& weak : impl_->groups) {
      if (auto group = weak.lock()) live.push_back(std::move(group));
    }
    lanes = impl_->worn;
    for (const auto& [key, lane] : impl_->lanes) lanes.push_back(lane);
  }
  // All at once: the patience of many groups must not add up.
  std::vector<std::pair<Nanos, std::future<Status>>> closing;
  for (const auto& group : live) {
    closing.emplace_back(group->linger(), group->start_close(group->linger(), give_up));
  }
  for (auto& [limit, closed] : closing) {
    closed.wait_for(std::chrono::nanoseconds(std::min<Nanos>(limit, 86400 * kSecond) + kSecond));
  }
  for (const auto& lane : lanes) lane->stop(2 * kSecond);
  if (impl_->hub) impl_->hub->stop();
}

}  // namespace mcast
