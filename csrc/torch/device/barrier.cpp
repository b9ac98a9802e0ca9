// A barrier for a device: c10d asks for one where everything that a rank has given to its device is
// done before the others go on.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend.h"

namespace mcast::pg {

void ProcessGroupMcast::finish_device(c10::Device device) {
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
