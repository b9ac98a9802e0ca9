// The device state of one group: streams, works in flight, the failure policy and the device of the
// last call.
//
// Threads: any; check() on the thread that makes the call. Errors: c10::Error.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "call_statistics.h"
#include "device/failure_policy.h"
#include "device/side_streams.h"
#include "work.h"

namespace mcast::pg {

class GroupDevices {
 public:
  explicit GroupDevices(const Config& config);

  // Call before a call for a device: throws if its commands would go into a graph, or if an earlier
  // failure has left undefined data there.
  void check(Op op, c10::Device device) const;
  // A call for a tensor on this device was made.
  void note(c10::Device device);
  std::optional<c10::Device> last() const;

  // Returns the streams of a lane on `device`, made at the first call.
  SideStreams streams(c10::Device device, bool reduces, const Group& engine_group);
  // Returns the streams for messages that are posted on this stream of the caller.
  SideStreams streams_of_messages(const c10::Stream& caller) const;

  void add(const c10::intrusive_ptr<McastWork>& work);
  std::vector<c10::intrusive_ptr<McastWork>> in_flight() const;

  std::shared_ptr<FailurePolicy> policy() const;
  // The group has left its members; reset() clears what is recorded for them.
  void leave() { policy()->ended_here(); }
  void reset();

 private:
  const std::string failure_, wait_;  // settings
  const size_t piece_;
  mutable std::mutex mutex_;  // guards the rest
  std::shared_ptr<FailurePolicy> policy_;
  std::vector<SideStreams> streams_;                       // one per device and lane used
  std::vector<c10::weak_intrusive_ptr<McastWork>> works_;  // in flight
  std::optional<c10::Device> last_;
};

}  // namespace mcast::pg
