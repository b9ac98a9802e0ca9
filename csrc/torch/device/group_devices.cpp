// A group's devices: which it has used, and which of them a failure has tainted.
#include "device/group_devices.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace mcast::pg {

GroupDevices::GroupDevices(const Config& config)
    : failure_(config.device_failure),
      wait_(config.device_wait),
      piece_(config.segment),
      policy_(std::make_shared<FailurePolicy>(failure_)) {}

void GroupDevices::check(Op op, c10::Device device) const {
  const c10::impl::VirtualGuardImpl guard(device.type());
  TORCH_CHECK(!is_captured(guard.getStream(device)), op_name(op), ": mcast cannot be captured ",
              "in a graph: the host takes part in every operation");
  check_untainted(op_name(op), device);
}

void GroupDevices::note(c10::Device device) {
  if (device.is_cpu()) return;
  const std::lock_guard lock(mutex_);
  last_ = device;
}

std::optional<c10::Device> GroupDevices::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

SideStreams GroupDevices::streams(c10::Device device, bool reduces, const Group& engine_group) {
  const std::lock_guard lock(mutex_);
  for (const SideStreams& streams : streams_) {
    if (streams.in.device() == device && streams.reduces == reduces) return streams;
  }
  streams_.push_back(SideStreams::make(device, reduces, gate_for(device, wait_), piece_,
                                       engine_group.stats().chunk));
  return streams_.back();
}

SideStreams GroupDevices::streams_of_messages(const c10::Stream& caller) const {
  return SideStreams::of_messages(caller, gate_for(caller.device(), wait_), piece_);
}

void GroupDevices::add(const c10::intrusive_ptr<McastWork>& work) {
  const std::lock_guard lock(mutex_);
  std::erase_if(works_, [](const auto& earlier) { return earlier.expired(); });
  works_.emplace_back(work);
}

std::vector<c10::intrusive_ptr<McastWork>> GroupDevices::in_flight() const {
  std::vector<c10::intrusive_ptr<McastWork>> works;
  const std::lock_guard lock(mutex_);
  for (const auto& earlier : works_) {
    if (auto work = earlier.lock()) works.push_back(std::move(work));
  }
  return works;
}

std::shared_ptr<FailurePolicy> GroupDevices::policy() const {
  const std::lock_guard lock(mutex_);
  return policy_;
}

void GroupDevices::reset() {
  policy()->clear();
  const std::lock_guard lock(mutex_);
  policy_ = std::make_shared<FailurePolicy>(failure_);
  streams_.clear();
}

}  // namespace mcast::pg
