// Carries out the setting device_failure for failures after wait() has returned.
#include "device/failure_policy.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.h"
#include "flight.h"

namespace mcast::pg {
namespace {

// Time for the flight recorder's dump and the completion hooks of earlier operations, which need
// Python's lock; as long as that of torch's NCCL backend, since a busy host needs seconds for the
// stacks. The outputs cannot be read meanwhile.
constexpr std::chrono::seconds kDumpLimit(15);

struct Taint {
  const void* owner;
  c10::Device device;
  std::string text;
};

// Leaked: lanes may fail operations while static destructors run.
struct Taints {
  std::mutex mutex;
  std::vector<Taint> all;  // oldest first
  std::atomic<bool> any{false};
  std::atomic<bool> leaving{false};

  template <typename Condition>
  void erase(const Condition& condition) {
    const std::lock_guard lock(mutex);
    std::erase_if(all, condition);
    any.store(!all.empty());
  }
};
Taints& taints() {
  static auto* const one = new Taints;
  return *one;
}

bool same(c10::Device a, c10::Device b) {
  return a.type() == b.type() && (!a.has_index() || !b.has_index() || a.index() == b.index());
}

// Runs on a thread of its own: the lane must continue, so that other ranks learn of the failure.
void end_process() {
  static std::atomic<bool> begun{false};
  if (begun.exchange(true)) return;
  std::thread([] {
    const auto dumped = std::make_shared<std::promise<void>>();
    std::future<void> done = dumped->get_future();
    FlightRecorder::dump([dumped] { dumped->set_value(); });
    done.wait_for(kDumpLimit);
    std::abort();
  }).detach();
}

}  // namespace

FailurePolicy::FailurePolicy(const std::string& setting)
    : action_(setting == "abort"   ? Action::kAbort
              : setting == "raise" ? Action::kRaise
                                   : Action::kLog) {}

FailurePolicy::~FailurePolicy() {
  // The address may be reused by another policy.
  const std::lock_guard lock(taints().mutex);
  for (Taint& taint : taints().all) {
    if (taint.owner == this) taint.owner = nullptr;
  }
}

bool FailurePolicy::failed_after_wait(c10::Device device, bool undefined, const std::string& name,
                                      const std::string& why) {
  const bool expected = ended_here_.load() || taints().leaving.load();
  if (!undefined || expected || action_ == Action::kLog) {
    log(LogLevel::kError, "%s failed after wait() had returned; its outputs are %s: %s",
        name.c_str(), undefined ? "undefined" : "complete", why.c_str());
    return true;
  }
  if (action_ == Action::kAbort) {
    log(LogLevel::kError,
        "%s failed after wait() had returned: its outputs on %s are undefined, so this process "
        "ends before anything can use them: %s Hint: device_failure=raise (MCAST_DEVICE_FAILURE) "
        "overwrites them and raises in the next call instead",
        name.c_str(), device.str().c_str(), why.c_str());
    end_process();
    return false;
  }
  log(LogLevel::kError,
      "%s failed after wait() had returned: its outputs on %s are undefined and are partly "
      "overwritten (NaN, -1); the next call on that device raises: %s",
      name.c_str(), device.str().c_str(), why.c_str());
  const std::lock_guard lock(taints().mutex);
  taints().all.push_back({this, device, name + ": " + why});
  taints().any.store(true, std::memory_order_release);
  return true;
}

void FailurePolicy::clear() {
  taints().erase([this](const Taint& taint) { return taint.owner == this; });
}

void check_untainted(const char* op, c10::Device device) {
  Taints& all = taints();
  if (!all.any.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(all.mutex);
  for (const Taint& taint : all.all) {
    if (!same(taint.device, device)) continue;
    C10_THROW_ERROR(
        DistBackendError,
        c10::str(op, ": refused, since an operation on ", taint.device,
                 " failed after its wait() had returned and left undefined outputs: ", taint.text,
                 " Hint: restore what was computed since then (a checkpoint), then call "
                 "torch_mcast.clear_failure('",
                 taint.device, "')."));
  }
}

void clear_failures(std::optional<c10::Device> device) {
  taints().erase([&](const Taint& taint) { return !device || same(taint.device, *device); });
}

void leave_failures() { taints().leaving.store(true); }

}  // namespace mcast::pg
