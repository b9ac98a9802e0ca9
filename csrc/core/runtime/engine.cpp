// One engine per process: a GroupMaker. It is leaked on purpose, because no part of it may be
// destroyed while other threads run at exit; the host language's exit hook calls shutdown(). After
// fork() the child closes the descriptors it inherited and starts with a new engine.
#include "runtime/engine.h"

#include <pthread.h>

#include <mutex>

#include "runtime/group_maker.h"

namespace mcast {

struct Engine::Impl {
  GroupMaker maker;
};

namespace {

// Guarded by the atfork handlers, so that a child never inherits it locked.
std::mutex* const g_mutex = new std::mutex;
Engine* g_engine = nullptr;
Engine::Impl* g_impl = nullptr;

void before_fork() {
  g_mutex->lock();
  if (g_impl != nullptr) g_impl->maker.lock();
}

void after_fork_in_parent() {
  if (g_impl != nullptr) g_impl->maker.unlock();
  g_mutex->unlock();
}

void after_fork_in_child() {
  if (g_impl != nullptr) {
    g_impl->maker.abandon_after_fork();
    g_impl->maker.unlock();
  }
  // The parent's engine stays in memory, untouched: its threads do not exist here.
  g_engine = nullptr;
  g_impl = nullptr;
  g_mutex->unlock();
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

Result<std::shared_ptr<Group>> Engine::create_group(const GroupSpec& spec, KeyValueStore& store) {
  if (const auto level = parse_log_level(spec.config.debug)) set_log_level(*level);
  auto made = impl_->maker.create_group(spec, store);
  if (!made.ok()) return made.status();
  return std::shared_ptr<Group>(std::move(made).value());
}

std::vector<TraceEvent> Engine::trace() const { return impl_->maker.trace(); }

std::vector<std::shared_ptr<Group>> Engine::groups() const { return impl_->maker.groups(); }

void Engine::shutdown(bool give_up, const std::function<bool()>& hurry) {
  impl_->maker.shutdown(give_up, hurry);
}

}  // namespace mcast
