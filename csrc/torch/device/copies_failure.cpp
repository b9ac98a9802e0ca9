// Failures of DeviceCopies: of the network, whose error must be recorded before a gate opens, or of
// the device.
#include <ATen/ATen.h>

#include "background.h"
#include "device/completion_poller.h"
#include "device/device_copies.h"
#include "device/words.h"
#include "work.h"

namespace mcast::pg {

// Returns true if the bytes that the device copies in for this transfer are the ones that the
// network has delivered. A receive has no words of targets: it is asked only before its message is
// here.
bool DeviceCopies::outputs_final(size_t transfer) const {
  if (streams_.gate == nullptr) return true;  // a copy is enqueued when its bytes are final
  if (plan_.receives()) return plan_.ins()[0].length == 0;
  const uint64_t piece = plan_.piece();
  for (const CopyPlan::TargetWord& target : plan_.target_words(transfer)) {
    if (target.length == 0) continue;
    const bool whole = target.flag != CopyPlan::kNoFlag
                           ? counted_[target.flag].load(std::memory_order_relaxed)
                           : load(word(target.word)) >= (target.length + piece - 1) / piece;
    if (!whole) return false;
  }
  return true;
}

// The network fails transfer `transfer`. Decides, before a gate opens, about everything that the
// gate could let through to a caller that does not know of the failure. Returns true if the gates
// may open.
bool DeviceCopies::failed(size_t transfer, const Status& status, McastWork& work) {
  failed_.store(true, std::memory_order_release);
  if (policy_->poisons()) store(word(CopyPlan::kFailedWord), 1);
  if (!work.record_failure(to_exception(status, work.name().text()))) return true;
  return policy_->failed_after_wait(streams_.in.device(), !outputs_final(transfer),
                                    work.name().text(), status.to_string());
}

// The device is not called when the operation fails: the command is enqueued already, and has no
// effect unless it finds the record.
void DeviceCopies::enqueue_poison() {
  const at::Tensor failed =
      at::empty({1}, at::TensorOptions().dtype(at::kBool).device(streams_.in.device()));
  failed.copy_(host_view(CopyPlan::kFailedWord * sizeof(uint32_t), 1).view(at::kBool), true);
  for (const DevicePlan& transfer : transfers()) {
    for (const DeviceBytes& range : adjoining(transfer.targets)) {
      at::Tensor elements = spread_elements(range, transfer.dtype);
      if (elements.numel() > 0) elements.masked_fill_(failed, -1);
    }
  }
}

void DeviceCopies::break_down(std::exception_ptr error) {
  if (failure_.set(std::move(error))) CompletionPoller::instance().notify();
}

// The device is unusable: it may still use the memory in unknown ways, so the memory is never
// released.
void DeviceCopies::fail(const std::string& why) {
  failed_.store(true, std::memory_order_release);
  const std::exception_ptr error = listener_.work->device_error(why);
  (void)listener_.work->record_failure(error);
  if (policy_->poisons()) store(word(CopyPlan::kFailedWord), 1);
  for (size_t i = CopyPlan::kFirstTargetWord; i < plan_.words(); ++i) store(word(i), kOpen);
  new auto(pinned_);
  new auto(transfers());
  listener_.abort("the device failed: " + why);
  finish(error);
}

}  // namespace mcast::pg
