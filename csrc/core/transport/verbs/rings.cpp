// Entries start on cache lines. The number of receives is as large as the device, its completion
// queue and the limit of locked memory allow; the number of sends is small and fixed.
#include "transport/verbs/rings.h"

#include <algorithm>
#include <utility>

namespace mcast::verbs {
namespace {

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

}  // namespace

Status SendRing::open(Device& device) {
  stride_ = round_up(device.mtu(), 64);
  for (uint16_t entry = 0; entry < kSendEntries; ++entry) free_.push_back(entry);
  return memory_.open(device.api(), device.pd(), kSendEntries * stride_);
}

uint16_t SendRing::take(Gathered held) {
  const uint16_t entry = free_.front();
  free_.pop_front();
  held_[entry] = std::move(held);
  return entry;
}

void SendRing::give_back(uint16_t entry) {
  held_[entry] = {};
  free_.push_back(entry);
}

void SendRing::end_chain(std::shared_ptr<AddressHandle> handle, bool signalled) {
  if (signalled) signalled_ = posted_;
  chains_.push_back({posted_, std::move(handle)});
}

void SendRing::let_go(uint64_t number) {
  for (; done_ < number; ++done_) give_back(order_[done_ % kSendEntries]);
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
  entries_ =
      std::min({kReceiveEntries, device_most, queue_most - std::min(queue_most, kSendEntries),
                static_cast<size_t>(rcvbuf) / stride_});
  entries_ = std::max(entries_, 2 * kReceiveChain);
  // The memory lock limit of an ordinary user is small: use as much as it allows.
  Status status = memory_.open(device.api(), device.pd(), entries_ * stride_);
  while (status.code() == Code::kResourceExhausted && entries_ > 8 * kReceiveChain) {
    entries_ /= 2;
    status = memory_.open(device.api(), device.pd(), entries_ * stride_);
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
  std::vector<bool> kept(entries_);
  for (const Arrival& a : arrived_) kept[a.entry] = true;
  free_.clear();
  for (uint32_t entry = 0; entry < entries_; ++entry) {
    if (!kept[entry]) free_.push_back(entry);
  }
  posted_ = 0;
}

}  // namespace mcast::verbs
