// The engine's group is created by a rendezvous on the store, which signals may interrupt. A rank
// that leaves stays until the others have received everything that they need of it.
#include "members.h"

#include <thread>
#include <utility>

#include "fallbacks.h"
#include "flight.h"
#include "gil.h"
#include "store.h"

namespace mcast::pg {
namespace {

// Inside the engine ranks are those of the group; users know the global ones.
std::string global_ranks_text(const std::vector<uint64_t>& global) {
  constexpr size_t kShown = 16;
  bool same = true;
  std::string list;
  for (size_t r = 0; r < global.size(); ++r) {
    same = same && global[r] == r;
    if (r < kShown)
      list += (r > 0 ? ", " : "") + std::to_string(r) + "=" + std::to_string(global[r]);
  }
  if (same) return "";
  return " (group rank=global rank: " + list + (global.size() > kShown ? ", ..." : "") + ")";
}

}  // namespace

ProcessGroupMcast::Members::Members(ProcessGroupMcast& group) : pg(group) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  none = pg.options_->enable_reconfigure;
#endif
  const std::vector<uint64_t>& global = pg.options_->global_ranks_in_group;
  const auto rank = static_cast<size_t>(pg.rank_);
  own_global_rank = rank < global.size() ? global[rank] : rank;
}

std::shared_ptr<std::atomic<Code>> ProcessGroupMcast::Members::failure() const {
  const std::lock_guard lock(pg.mutex_);
  return first_failure;
}

std::string ProcessGroupMcast::Members::place() const {
  return c10::str(" on rank ", pg.rank_, " of ", pg.size_, " in group '", pg.name_, "'",
                  global_ranks_text(pg.options_->global_ranks_in_group));
}

void ProcessGroupMcast::Members::make(const c10::intrusive_ptr<c10d::Store>& store,
                                      std::chrono::milliseconds timeout) {
  const WithoutGil nogil;
  // The engine uses no exceptions: one raised by a signal handler is passed around it.
  std::exception_ptr raised;
  const auto interrupted = [&raised, first = failure()] {
    try {
      check_signals();
    } catch (...) {
      raised = std::current_exception();
    }
    return raised != nullptr || first->load() == Code::kAborted;
  };
  StoreAdapter adapter(store, pg.rank_, pg.options_->global_ranks_in_group, interrupted);
  GroupSpec spec;
  spec.name = pg.name_;
  spec.rank = static_cast<Member>(pg.rank_);
  spec.size = static_cast<uint32_t>(pg.size_);
  spec.config = pg.config_;
  if (spec.config.security != "off" && spec.config.job.empty())
    spec.config.job = job_name_of(*store);
  spec.timeout = pg.limit(timeout);
  spec.fallback = offered_fallback(pg.options_->fallback);
  spec.interrupted = interrupted;
  auto made = Engine::instance().create_group(spec, adapter);
  if (raised) std::rethrow_exception(raised);
  if (!made.ok()) {
    throw_status(made.status(),
                 c10::str("mcast: rank ", pg.rank_, " of ", pg.size_, " could not make group '",
                          pg.name_, "'", global_ranks_text(pg.options_->global_ranks_in_group)));
  }
  (*made)->on_failure([first = failure()](const Status&) {
    // Not after this rank's own abort().
    if (first->load() != Code::kAborted) FlightRecorder::failed();
  });
  const std::lock_guard lock(pg.mutex_);
  pg.group_ = std::move(made).value();
  none = false;
  // Creations are counted on a separate store of each membership; these keys are on the group's.
  incarnation = (number < 0 ? "" : c10::str(number, "/")) + adapter.prefix();
}

std::shared_ptr<Group> ProcessGroupMcast::Members::take_group() {
  const WithoutGil nogil;
  const std::lock_guard lock(pg.mutex_);
  std::shared_ptr<Group> group = std::exchange(pg.group_, nullptr);
  if (group) pg.last_stats_ = group->stats();
  return group;
}

// Operations that have ended here may still be running at other ranks, which need this rank until
// they confirm them. After Ctrl-C or a failure, interrupted operations are not waited for.
void ProcessGroupMcast::Members::close(Group& group, HeldSignal& signal) const {
  const bool give_up =
      pg.interrupted_->load() > 0 || handles_interrupt() || failure()->load() != Code::kOk;
  const Status closed = give_up ? group.give_up(pg.config_.linger)
                                : group.close_in_order([&signal] { return signal.raised(); });
  // A peer that failed has been reported by the operations that it failed; here a warning is
  // enough.
  if (!closed.ok()) TORCH_WARN("mcast: group '", pg.name_, "' closed: ", closed.to_string());
}

void ProcessGroupMcast::Members::leave() {
  const WithoutGil nogil;
  pg.devices_.leave();
  HeldSignal signal;
  const std::shared_ptr<Group> group = take_group();
  {
    const std::lock_guard lock(pg.mutex_);
    none = true;
    pg.last_split_.reset();
  }
  if (group) close(*group, signal);
  pg.fallbacks_->works().fail_all("reconfigure()");
  std::vector<BackendPtr> backends = pg.fallbacks_->take();
  for (const BackendPtr& backend : backends) backend->abort();
  drop(std::move(backends));
  signal.rethrow();
}

// Joins threads. After a failure they may be in the middle of a call whose peers never come.
void ProcessGroupMcast::Members::drop(std::vector<BackendPtr> backends) const {
  if (failure()->load() != Code::kOk && pg.fallbacks_->works().any_runs()) {
    std::thread([left = std::move(backends)]() mutable { left.clear(); }).detach();
  }
}

}  // namespace mcast::pg
