// The sending half. A datagram is written into the next slot of a registered ring: header and
// payload, or the header alone, the device then taking the payload from the caller's registered
// memory (gather.h). Up to 32 are posted as one chain of work requests of which only the last is
// signalled; its completion frees all slots before it and lets go of the memory that they named.
//
// A send that fails puts the queue pair into the send error state: what was posted is lost like
// datagrams in the network, the state is reset and sending goes on.
#include <algorithm>
#include <array>
#include <utility>

#include "transport/verbs/datagram.h"

namespace mcast::verbs {

std::byte* UdEndpoint::send_slot(uint64_t number) const {
  return send_.data() + number % kSendSlots * send_stride_;
}

Bytes UdEndpoint::lend(const MulticastAddress& address, size_t size) {
  lent_ = 0;
  if (size == 0 || size > device_.mtu() || address.port == 0) return {};
  if (committed_ - done_ == kSendSlots) {
    reap();
    if (committed_ - done_ == kSendSlots) {
      (void)push();
      ++stats_.would_block;
      return {};
    }
  }
  (void)find_or_start(address);
  lent_to_ = address;
  lent_ = size;
  return {send_slot(committed_), size};
}

void UdEndpoint::commit(size_t size) {
  size = std::min(size, std::exchange(lent_, 0));
  if (size == 0) return;
  enqueue(size, {}, 0);
}

bool UdEndpoint::commit_gather(size_t header, const Slice& block, size_t offset, size_t length) {
  if (!sources_ || length == 0 || header + length > lent_) return false;
  const std::shared_ptr<Registration>& source = sources_->find(block, offset, length);
  if (source == nullptr) return false;
  lent_ = 0;
  ++stats_.gathered_datagrams;
  held_[committed_ % kSendSlots] = {source, block.region->keepalive()};
  enqueue(header, block.bytes().subspan(offset, length), source->lkey());
  return true;
}

void UdEndpoint::enqueue(size_t size, ConstBytes payload, uint32_t key) {
  queue_.push_back({lent_to_, size, payload, key});
  ++committed_;
  if (queue_.size() >= kSendChain) (void)push();
}

bool UdEndpoint::flush() { return queue_.empty() || push(); }

bool UdEndpoint::push() {
  while (!queue_.empty()) {
    const auto it = groups_.find(queue_.front().to);
    const Membership* m = it == groups_.end() ? nullptr : it->second.membership.get();
    if (m == nullptr || m->state() == Membership::State::kFailed || send_broken_) {
      drop_head();
      continue;
    }
    if (m->state() == Membership::State::kJoining) return false;
    size_t run = 1;
    while (run < std::min(queue_.size(), kSendChain) && queue_[run].to == queue_.front().to) ++run;
    const size_t posted = post_chain(run);
    if (posted < run) {
      // The device's queue is full, or broken; completions tell.
      reap();
      if (done_ == posted_) drop_head();
      return queue_.empty();
    }
  }
  return true;
}

// Whatever cannot be sent is lost, as far as the protocol is concerned. Slots are freed in order,
// so the dropped one counts as posted and done with its predecessors.
void UdEndpoint::drop_head() {
  queue_.pop_front();
  ++stats_.dropped_datagrams;
  ++posted_;
  if (done_ >= signalled_) let_go(posted_);
}

void UdEndpoint::let_go(uint64_t number) {
  for (; done_ < number; ++done_) held_[done_ % kSendSlots] = {};
}

size_t UdEndpoint::post_chain(size_t count) {
  const Membership& m = *groups_.find(queue_.front().to)->second.membership;
  std::array<ibv_send_wr, kSendChain> wr;
  std::array<std::array<ibv_sge, 2>, kSendChain> sge;
  for (size_t i = 0; i < count; ++i) {
    const Queued& q = queue_[i];
    sge[i][0] = {reinterpret_cast<uint64_t>(send_slot(posted_ + i)), static_cast<uint32_t>(q.size),
                 send_.lkey()};
    sge[i][1] = {reinterpret_cast<uint64_t>(q.payload.data()),
                 static_cast<uint32_t>(q.payload.size()), q.key};
    wr[i] = {};
    wr[i].wr_id = posted_ + i + 1;  // everything below is done when this is
    wr[i].next = i + 1 < count ? &wr[i + 1] : nullptr;
    wr[i].sg_list = sge[i].data();
    wr[i].num_sge = q.payload.empty() ? 1 : 2;
    wr[i].opcode = IBV_WR_SEND;
    wr[i].send_flags = i + 1 == count ? IBV_SEND_SIGNALED : 0;
    wr[i].wr.ud.ah = m.handle();
    wr[i].wr.ud.remote_qpn = m.remote_qpn();
    wr[i].wr.ud.remote_qkey = m.qkey();
  }
  ibv_send_wr* bad = nullptr;
  const int error = device_.api().post_send(qp_, wr.data(), &bad);
  size_t posted = count;
  if (error != 0) {
    ++stats_.send_errors;
    posted = bad != nullptr ? static_cast<size_t>(bad - wr.data()) : 0;
  } else {
    signalled_ = posted_ + count;
  }
  ++stats_.send_posts;
  stats_.datagrams_sent += posted;
  posted_ += posted;
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(posted));
  return posted;
}

void UdEndpoint::recover() {
  // Only a queue pair that is out of receives as well is beyond help; then posting fails below.
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_SQE;
  const int error = device_.api().modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (error == 0) send_broken_ = false;
  // Nothing that was posted will complete any more.
  let_go(posted_);
}

}  // namespace mcast::verbs
