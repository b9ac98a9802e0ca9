// One engine per process: lanes by the settings that their sockets depend on, made at first use and
// kept, so that groups are cheap. A lane that has lost a peer can never talk to that process again
// (neither side would know what the other had received), so the next group gets a fresh one, with
// new sockets and a new identity; the poisoned one ends when its last group is gone. The same goes
// for a lane whose interface has got another address. The engine is leaked on purpose (nothing of
// it may be destroyed while other threads run at exit); shutdown() is called by the host language's
// exit hook. After fork() the child closes the descriptors it inherited and starts with an engine
// of its own.
#include "engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "engine/engine_impl.h"
#include "engine/fault_classifier.h"
#include "engine/network_group.h"
#include "engine/transport_choice.h"
#include "transport/interceptor.h"
#include "transport/udp/netif.h"
#include "transport/udp/socket.h"
#include "transport/udp/udp_transport.h"
#include "transport/verbs/verbs_transport.h"

namespace mcast {

namespace {

constexpr Nanos kPoisonedPatience = 500 * kMilli;  // for the goodbye to peers that are still there

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
    for (const auto& lane : g_impl->poisoned) lane->abandon_after_fork();
    if (g_impl->hub) g_impl->hub->abandon_after_fork();
    g_impl->mutex.unlock();
  }
  // The parent's engine stays in memory, untouched: its threads do not exist here.
  g_engine = nullptr;
  g_impl = nullptr;
  g_mutex->unlock();
}

// Whether others can still reach it where it listens.
bool has_its_addresses(Transport& transport) {
  if (std::string_view(transport.name()) != "udp") return true;
  const auto interfaces = list_interfaces();
  if (!interfaces.ok()) return true;  // not known
  std::istringstream listens(transport.stream().address(false).host);
  for (std::string address; std::getline(listens, address, '+');) {
    const auto here = [&](const Interface& i) { return to_text(i.address) == address; };
    if (std::none_of(interfaces->begin(), interfaces->end(), here)) return false;
  }
  return true;
}

// So that XPS gives each lane a transmit queue of its own.
int pin_cpu(const Config& config, LaneId lane) {
  const auto cpus = static_cast<int>(std::thread::hardware_concurrency());
  const char* local = getenv("LOCAL_WORLD_SIZE");
  const char* rank = getenv("LOCAL_RANK");
  const int lanes = int{kLanes} * (local != nullptr ? std::max(1, atoi(local)) : 1);
  if (config.pin == 0 || cpus < lanes) return -1;
  return (int{kLanes} * (rank != nullptr ? std::max(0, atoi(rank)) : 0) +
          static_cast<int>(index_of(lane))) %
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

// Ends the poisoned lanes that no group uses any more. `mutex` held.
void Engine::Impl::sweep_poisoned() {
  for (size_t i = 0; i < poisoned.size();) {
    if (poisoned[i].use_count() > 1) {
      i++;
      continue;
    }
    poisoned[i]->stop(kPoisonedPatience);
    poisoned.erase(poisoned.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Result<std::shared_ptr<LaneThread>> Engine::Impl::lane_for(const Config& config, LaneId id,
                                                           bool verbs, uint32_t number) {
  const std::string key = config.lane_key() + (verbs ? "verbs" : "udp") + " lane " +
                          std::to_string(index_of(id)) + "." + std::to_string(number);
  std::lock_guard<std::mutex> lock(mutex);
  if (down) return Status(Code::kClosed, "the engine is shut down");
  if (const auto it = lanes.find(key); it != lanes.end()) {
    if (!it->second->poisoned() && has_its_addresses(it->second->transport())) return it->second;
    poisoned.push_back(it->second);
    lanes.erase(it);
  }
  sweep_poisoned();
  Result<std::unique_ptr<Transport>> made =
      verbs ? make_verbs_transport(VerbsOptions::from(config, index_of(id)))
            : make_udp_transport(UdpTransportOptions::from(config, index_of(id)));
  if (!made.ok()) return made.status();
  Result<std::unique_ptr<Transport>> wrapped =
      intercept(std::move(made).value(), config.faults, &wire_fault_classifier());
  if (!wrapped.ok()) return wrapped.status().with_context("setting faults (MCAST_FAULTS)");
  const bool multicast = id == LaneId::kMulticast;
  auto lane = std::make_shared<LaneThread>(
      std::move(wrapped).value(),
      (multicast ? "mcast-lane" : "mcast-red") + std::to_string(lanes.size() / kLanes),
      number == 0 ? pin_cpu(config, id) : -1, multicast ? arrived : nullptr);
  log(LogLevel::kInfo, "%s lane: transport %s", multicast ? "multicast" : "reduce",
      lane->description().c_str());
  lanes[key] = lane;
  return lane;
}

Result<Lanes> Engine::Impl::lanes_for(const Config& config, bool verbs, uint32_t number) {
  Lanes made;
  for (const LaneId id : kBothLanes) {
    const uint32_t own = id == LaneId::kMulticast ? number : 0;
    Result<std::shared_ptr<LaneThread>> lane = lane_for(config, id, verbs, own);
    if (!lane.ok()) return lane.status();
    made[id] = std::move(lane).value();
  }
  return made;
}

std::string Engine::Impl::verbs_problem_of(const Config& config) {
  const std::string key = config.transport + "\n" + config.lane_key();
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = verbs_problems.find(key);
  if (it != verbs_problems.end()) return it->second;
  return verbs_problems[key] = verbs_problem(config);
}

// What cannot be had in the middle of it is let go of on the way out, so that it can be tried
// again.
Result<std::shared_ptr<Group>> Engine::create_group(const GroupSpec& spec, KeyValueStore& store) {
  std::string why;
  try {
    return impl_->create(spec, store);
  } catch (const std::bad_alloc&) {
    why = "out of memory";
  } catch (const std::system_error& error) {
    why = std::string("cannot start a thread: ") + error.what();
  }
  return Status(Code::kResourceExhausted, "group '" + spec.name + "': " + why);
}

Result<std::shared_ptr<Group>> Engine::Impl::create(const GroupSpec& spec, KeyValueStore& store) {
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
    std::lock_guard<std::mutex> lock(mutex);
    if (!trace) trace = std::make_shared<Trace>(spec.config.trace);
  }
  std::shared_ptr<GroupBase> group;
  if (spec.size == 1) {
    group = std::make_shared<NetworkGroup>(spec, NetworkGroupParts());
  } else {
    Result<std::shared_ptr<GroupBase>> made = join(spec, store);
    if (!made.ok()) return made.status();
    group = std::move(made).value();
  }
  std::lock_guard<std::mutex> lock(mutex);
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
  std::vector<std::shared_ptr<GroupBase>> live, parts;
  std::vector<std::shared_ptr<LaneThread>> lanes;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->down) return;
    impl_->down = true;
    for (const auto& weak : impl_->groups) {
      if (auto group = weak.lock()) live.push_back(std::move(group));
    }
    for (const auto& weak : impl_->parts) {
      if (auto group = weak.lock()) parts.push_back(std::move(group));
    }
    lanes = impl_->poisoned;
    for (const auto& [key, lane] : impl_->lanes) lanes.push_back(lane);
  }
  // All at once: the patience of many groups must not add up. Then what they are made of, where
  // nothing is in flight any more.
  for (const auto& row : {live, parts}) {
    std::vector<std::pair<Nanos, std::future<Status>>> closing;
    for (const auto& group : row) {
      closing.emplace_back(group->linger(), group->start_close(group->linger(), give_up));
    }
    for (auto& [limit, closed] : closing) {
      closed.wait_for(std::chrono::nanoseconds(std::min<Nanos>(limit, 86400 * kSecond) + kSecond));
    }
  }
  for (const auto& lane : lanes) lane->stop(2 * kSecond);
  if (impl_->hub) impl_->hub->stop();
}

}  // namespace mcast
