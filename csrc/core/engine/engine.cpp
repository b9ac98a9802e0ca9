// One engine per process: the groups that there are, and what they share (engine/resources.h). It
// is leaked on purpose (nothing of it may be destroyed while other threads run at exit); shutdown()
// is called by the host language's exit hook. After fork() the child closes the descriptors it
// inherited and starts with an engine of its own.
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <system_error>

#include "engine/bootstrap.h"
#include "engine/fault_classifier.h"
#include "engine/network_group.h"
#include "engine/resources.h"

namespace mcast {

struct Engine::Impl {
  Resources resources;
  std::mutex mutex;  // of what follows
  std::vector<std::weak_ptr<GroupBase>> groups;
  bool down = false;
};

namespace {

constexpr Nanos kGoodbyePatience = 2 * kSecond;

// Guarded by the atfork handlers, so that a child never inherits it locked.
std::mutex* const g_mutex = new std::mutex;
Engine* g_engine = nullptr;
Engine::Impl* g_impl = nullptr;

void before_fork() {
  g_mutex->lock();
  if (g_impl == nullptr) return;
  g_impl->mutex.lock();
  g_impl->resources.lock();
}

void after_fork_in_parent() {
  if (g_impl != nullptr) {
    g_impl->resources.unlock();
    g_impl->mutex.unlock();
  }
  g_mutex->unlock();
}

void after_fork_in_child() {
  if (g_impl != nullptr) {
    g_impl->resources.abandon_after_fork();
    g_impl->resources.unlock();
    g_impl->mutex.unlock();
  }
  // The parent's engine stays in memory, untouched: its threads do not exist here.
  g_engine = nullptr;
  g_impl = nullptr;
  g_mutex->unlock();
}

Status check_spec(const GroupSpec& spec) {
  if (spec.size == 0 || spec.size >= kNoMember || spec.rank >= spec.size) {
    return Status(Code::kInvalidArgument, "group '" + spec.name + "': rank " +
                                              std::to_string(spec.rank) + " of " +
                                              std::to_string(spec.size));
  }
  // Also where one rank needs no transport: a bad text should not wait for the second rank.
  const auto rules = parse_faults(spec.config.faults, &wire_fault_classifier());
  return rules.ok() ? Status() : rules.status().with_context("setting faults (MCAST_FAULTS)");
}

Result<std::shared_ptr<GroupBase>> make_group(Resources& resources, const GroupSpec& spec,
                                              KeyValueStore& store) {
  if (spec.size > 1) return Bootstrap(resources, spec, store).run();
  return std::shared_ptr<GroupBase>(std::make_shared<NetworkGroup>(spec, NetworkGroupParts()));
}

// All at once: the patience of many groups must not add up.
void close_all(const std::vector<std::shared_ptr<GroupBase>>& groups, bool give_up) {
  std::vector<std::pair<Nanos, std::future<Status>>> closing;
  for (const auto& group : groups) {
    closing.emplace_back(group->linger(), group->start_close(group->linger(), give_up));
  }
  for (auto& [limit, closed] : closing) {
    closed.wait_for(std::chrono::nanoseconds(std::min<Nanos>(limit, 86400 * kSecond) + kSecond));
  }
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

// What cannot be had in the middle of it is let go of on the way out, so that it can be tried
// again.
Result<std::shared_ptr<Group>> Engine::create_group(const GroupSpec& spec, KeyValueStore& store) {
  std::string why;
  try {
    if (Status status = check_spec(spec); !status.ok()) return status;
    if (const auto level = parse_log_level(spec.config.debug)) set_log_level(*level);
    impl_->resources.start_trace(spec.config.trace);
    Result<std::shared_ptr<GroupBase>> made = make_group(impl_->resources, spec, store);
    if (!made.ok()) return made.status();
    std::lock_guard<std::mutex> lock(impl_->mutex);
    remember(impl_->groups, *made);
    return std::shared_ptr<Group>(std::move(made).value());
  } catch (const std::bad_alloc&) {
    why = "out of memory";
  } catch (const std::system_error& error) {
    why = std::string("cannot start a thread: ") + error.what();
  }
  return Status(Code::kResourceExhausted, "group '" + spec.name + "': " + why);
}

std::vector<TraceEvent> Engine::trace() const {
  const std::shared_ptr<Trace> trace = impl_->resources.trace();
  return trace ? trace->events() : std::vector<TraceEvent>();
}

std::vector<std::shared_ptr<Group>> Engine::groups() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto live = living(impl_->groups);
  return {live.begin(), live.end()};
}

void Engine::shutdown(bool give_up) {
  std::vector<std::shared_ptr<GroupBase>> live;
  std::vector<std::shared_ptr<LaneThread>> lanes;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (std::exchange(impl_->down, true)) return;
    live = living(impl_->groups);
    lanes = impl_->resources.lanes().close();
  }
  // Groups, then what they are made of, where nothing is in flight any more.
  const auto parts = impl_->resources.parts();
  close_all(live, give_up);
  close_all(parts, give_up);
  impl_->resources.registrar().stop();
  for (const auto& lane : lanes) lane->stop(kGoodbyePatience);
  impl_->resources.stop_registry();
}

}  // namespace mcast
