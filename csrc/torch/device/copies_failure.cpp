// How DeviceCopies fails: by the network, whose error must be known before a gate opens, or by the
// device.
#include <ATen/ATen.h>

#include "background.h"
#include "device/completion_poller.h"
#include "device/device_copies.h"
#include "device/words.h"
#include "work.h"

namespace mcast::pg {

// Whether what the device copies in for it is what the network has brought. A receive has no words
// of targets: it is asked only before its message is here.
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

// The network fails transfer `transfer`. Everything that a gate could let through to somebody who
// does not know of the failure is decided here, before one opens. Returns whether they may.
bool DeviceCopies::failed(size_t transfer, const Status& status, McastWork& work) {
  failed_.store(true, std::memory_order_release);
  if (policy_->poisons()) store(word(CopyPlan::kFailedWord), 1);
  if (!work.record_failure(to_exception(status, work.name().text()))) return true;
  return policy_->failed_after_wait(streams_.in.device(), !outputs_final(transfer),
                                    work.name().text(), status.to_string());
}

// Nothing is asked of the device when the operation fails: the command is there, and does nothing
// unless it finds the record.
void DeviceCopies::enqueue_poison() {
  const at::Tensor failed =
      at::empty({1}, at::TensorOptions().dtype(at::kBool).device(streams_.in.device()));
  failed.copy_(host_view(CopyPlan::kFailedWord * sizeof(uint32_t), 1).view(at::kBool), true);
  for (const Transfer& transfer : transfers()) {
    for (const DeviceBytes& range : adjoining(transfer.targets)) {
      at::Tensor elements = spread_elements(range, transfer.dtype);
      if (elements.numel() > 0) elements.masked_fill_(failed, -1);
    }
  }
}

void DeviceCopies::break_down(std::exception_ptr error) {
  if (failure_.set(std::move(error))) CompletionPoller::instance().notify();
}

// The device is unusable: what it still does with the memory is unknown, so that is never given
// back.
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
