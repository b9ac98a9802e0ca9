// A barrier for a device: everything that a rank has given to its device is done before the others
// go on. c10d tells backends the numbers that the caller gave (device_ids), but not the device that
// it has concluded from them, or from that of the group.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "backend.h"

namespace mcast::pg {

namespace {

std::optional<c10::Device> device_of(const c10d::BarrierOptions& opts,
                                     const std::optional<c10::Device>& bound) {
  if (opts.device) return opts.device;
  if (opts.device_ids.empty()) return bound;
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type) return std::nullopt;
  return c10::Device(*type, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
}

}  // namespace

void ProcessGroupMcast::finish_device(const c10d::BarrierOptions& opts) {
  const std::optional<c10::Device> asked = device_of(opts, getBoundDeviceId());
  if (!asked || asked->is_cpu()) return;
  c10::Device device = *asked;
  std::vector<c10::intrusive_ptr<McastWork>> works;
  {
    std::lock_guard lock(mutex_);
    for (const auto& earlier : device_works_) {
      if (auto work = earlier.lock()) works.push_back(std::move(work));
    }
  }
  for (const auto& work : works) {
    try {
      work->wait(std::chrono::milliseconds(std::max<int64_t>(1, timeout_ms_.load())));
    } catch (const c10::Error&) {
      // The group has failed with it, as the barrier will say.
    }
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!device.has_index()) device = guard.getDevice();
  guard.getStream(device).synchronize();
}

}  // namespace mcast::pg
