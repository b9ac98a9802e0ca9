// A barrier for a device: each rank posts the barrier once this group's collectives on device
// tensors and everything on the device's current stream have finished. It does not wait for other
// streams, nor for messages unless the current stream waits for them. c10d passes the numbers that
// the caller gave (device_ids), otherwise a device type of the group: "cpu" if the group serves
// that too. As with NCCL, such a barrier is then for the device to which the group is bound,
// otherwise for the device of its last operation.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "backend.h"

namespace mcast::pg {

namespace {

// The device named by the caller.
std::optional<c10::Device> named_device(const c10d::BarrierOptions& opts) {
  if (opts.device && !opts.device->is_cpu()) return opts.device;
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (opts.device_ids.empty() || !type) return std::nullopt;
  return c10::Device(*type, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
}

}  // namespace

void ProcessGroupMcast::finish_device(const c10d::BarrierOptions& opts) {
  std::optional<c10::Device> asked = named_device(opts);
  if (!asked) asked = getBoundDeviceId();
  if (!asked) asked = devices_.last();
  if (!asked || asked->is_cpu()) return;
  c10::Device device = *asked;
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!device.has_index()) device = guard.getDevice();
  devices_.check(Op::barrier, device);
  for (const auto& work : devices_.in_flight()) {
    try {
      work->wait(std::chrono::milliseconds(std::max<int64_t>(1, timeout_ms_.load())));
    } catch (const c10::Error&) {
      // The group has failed with it, which the barrier will report.
    }
  }
  guard.getStream(device).synchronize();
}

}  // namespace mcast::pg
