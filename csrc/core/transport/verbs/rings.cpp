// Slots start on cache lines. Of the receives as many are made as the device, its completion queue
// and the limit of locked memory allow; the sends are few and always the same.
#include "transport/verbs/rings.h"

#include <algorithm>
#include <utility>

namespace mcast::verbs {
namespace {

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

Status SendRing::open(Device& device) {
  stride_ = round_up(device.mtu(), 64);
  for (uint16_t slot = 0; slot < kSendSlots; ++slot) free_.push_back(slot);
  return memory_.open(device.api(), device.pd(), kSendSlots * stride_);
}

uint16_t SendRing::take(Gathered held) {
  const uint16_t slot = free_.front();
  free_.pop_front();
  held_[slot] = std::move(held);
  return slot;
}

void SendRing::give_back(uint16_t slot) {
  held_[slot] = {};
  free_.push_back(slot);
}

void SendRing::end_chain(std::shared_ptr<AddressHandle> handle, bool signalled) {
  if (signalled) signalled_ = posted_;
  chains_.push_back({posted_, std::move(handle)});
}

void SendRing::let_go(uint64_t number) {
  for (; done_ < number; ++done_) give_back(order_[done_ % kSendSlots]);
  while (!chains_.empty() && chains_.front().end <= done_) chains_.pop_front();
}

void SendRing::close() {
  chains_.clear();
  held_.fill({});
}

void SendRing::abandon() noexcept {
  memory_.abandon();
  for (Gathered& g : held_) {
    if (g.registration) g.registration->abandon();
  }
  for (Chain& c : chains_) c.handle->abandon();
}

Status ReceiveRing::open(Device& device, uint64_t rcvbuf) {
  stride_ = round_up(kGrh + device.mtu(), 64);
  const auto device_most = static_cast<size_t>(std::max(1, device.attr().max_qp_wr));
  const auto queue_most = static_cast<size_t>(std::max(1, device.attr().max_cqe));
  slots_ = std::min({kReceiveSlots, device_most, queue_most - std::min(queue_most, kSendSlots),
                     static_cast<size_t>(rcvbuf) / stride_});
  slots_ = std::max(slots_, 2 * kReceiveChain);
  // The memory lock limit of an ordinary user is small: take what it gives.
  Status status = memory_.open(device.api(), device.pd(), slots_ * stride_);
  while (status.code() == Code::kResourceExhausted && slots_ > 8 * kReceiveChain) {
    slots_ /= 2;
    status = memory_.open(device.api(), device.pd(), slots_ * stride_);
  }
  if (status.ok()) restart();
  return status;
}

void ReceiveRing::post(size_t count, size_t of) {
  posted_ += count;
  const auto first = free_.end() - static_cast<std::ptrdiff_t>(of);
  free_.erase(first, first + static_cast<std::ptrdiff_t>(count));
}

void ReceiveRing::restart() {
  std::vector<bool> kept(slots_);
  for (const Arrival& a : arrived_) kept[a.slot] = true;
  free_.clear();
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    if (!kept[slot]) free_.push_back(slot);
  }
  posted_ = 0;
}

}  // namespace mcast::verbs
