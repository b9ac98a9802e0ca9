// The sending half. A datagram is written into a free entry of a registered ring: header and
// payload, or the header alone, if the device takes the payload from the caller's registered memory
// (gather.h). Each group has its own queue, so that a group that waits for its address does not
// block another. Up to 32 datagrams are posted as one chain of work requests of which only the last
// is signalled; its completion frees all entries posted before it and releases the memory and the
// address handles that they used.
//
// A send that fails puts the queue pair into the send error state: the posted datagrams are lost
// like datagrams in the network, the state is reset and sending continues.
#include <algorithm>
#include <array>
#include <utility>

#include "transport/verbs/datagram.h"

namespace mcast::verbs {

size_t UdEndpoint::waiting() const {
  size_t sum = 0;
  for (const auto& [address, group] : groups_) {
    if (group.membership->state() == Membership::State::kJoining) sum += group.queue.size();
  }
  return sum;
}

Bytes UdEndpoint::lend(const MulticastAddress& address, size_t size, Echo) {
  lent_ = {};
  if (size == 0 || size > device_.mtu() || address.port == 0) return {};
  if (sends_.full()) {
    reap();
    if (sends_.full()) {
      push();
      ++stats_.would_block;
      return {};
    }
  }
  const Group& group = find_or_start(address);
  if (group.membership->state() == Membership::State::kJoining && waiting() >= kMostWaiting) {
    ++stats_.would_block;
    return {};
  }
  lent_ = {address, size};
  return {sends_.at(sends_.next()), size};
}

void UdEndpoint::commit(size_t size) {
  size = std::min(size, std::exchange(lent_.size, 0));
  if (size == 0) return;
  enqueue(size, {}, 0, {});
}

bool UdEndpoint::commit_gather(size_t header, const Slice& block, size_t offset, size_t length) {
  if (!sources_ || length == 0 || header + length > lent_.size) return false;
  const std::shared_ptr<Registration>& source = sources_->find(block, offset, length);
  if (source == nullptr) return false;
  lent_.size = 0;
  ++stats_.gathered_datagrams;
  enqueue(header, block.bytes().subspan(offset, length), source->lkey(),
          {source, block.region->keepalive()});
  return true;
}

void UdEndpoint::enqueue(size_t size, ConstBytes payload, uint32_t key, Gathered held) {
  Group& group = find_or_start(lent_.to);
  const uint16_t entry = sends_.take(std::move(held));
  group.queue.push_back({entry, size, payload, key});
  ++queued_;
  if (group.queue.size() >= kSendChain) push(group);
}

bool UdEndpoint::flush() {
  if (queued_ > 0) push();
  return queued_ == 0;
}

void UdEndpoint::push() {
  for (auto& [address, group] : groups_) push(group);
}

void UdEndpoint::push(Group& group) {
  while (!group.queue.empty()) {
    const Membership& m = *group.membership;
    if (m.state() == Membership::State::kJoining) return;
    if (m.state() == Membership::State::kFailed || send_broken_ || broken_) {
      drop_head(group);
      continue;
    }
    const size_t run = std::min(group.queue.size(), kSendChain);
    if (post_chain(group, run) == run) continue;
    // The device's queue is full, or broken; the completions tell which.
    reap();
    if (sends_.idle()) drop_head(group);
    return;
  }
}

// To the protocol, a datagram that cannot be sent counts as lost.
void UdEndpoint::drop_head(Group& group) {
  sends_.give_back(group.queue.front().entry);
  group.queue.pop_front();
  --queued_;
  ++stats_.dropped_datagrams;
}

size_t UdEndpoint::post_chain(Group& group, size_t count) {
  const Membership& m = *group.membership;
  std::array<ibv_send_wr, kSendChain> wr;
  std::array<std::array<ibv_sge, 2>, kSendChain> sge;
  for (size_t i = 0; i < count; ++i) {
    const Queued& q = group.queue[i];
    sge[i][0] = {reinterpret_cast<uint64_t>(sends_.at(q.entry)), static_cast<uint32_t>(q.size),
                 sends_.lkey()};
    sge[i][1] = {reinterpret_cast<uint64_t>(q.payload.data()),
                 static_cast<uint32_t>(q.payload.size()), q.key};
    wr[i] = {};
    wr[i].wr_id = sends_.posted() + i + 1;  // done: so are all requests before it
    wr[i].next = i + 1 < count ? &wr[i + 1] : nullptr;
    wr[i].sg_list = sge[i].data();
    wr[i].num_sge = q.payload.empty() ? 1 : 2;
    wr[i].opcode = IBV_WR_SEND;
    wr[i].send_flags = i + 1 == count ? IBV_SEND_SIGNALED : 0;
    wr[i].wr.ud.ah = m.handle()->get();
    wr[i].wr.ud.remote_qpn = m.remote_qpn();
    wr[i].wr.ud.remote_qkey = m.qkey();
  }
  ibv_send_wr* bad = nullptr;
  const int error = device_.api().post_send(qp_, wr.data(), &bad);
  size_t posted = count;
  if (error != 0) {
    ++stats_.send_errors;
    posted = bad != nullptr ? static_cast<size_t>(bad - wr.data()) : 0;
  }
  ++stats_.send_posts;
  stats_.datagrams_sent += posted;
  for (size_t i = 0; i < posted; ++i) {
    sends_.post(group.queue.front().entry);
    group.queue.pop_front();
  }
  queued_ -= posted;
  if (posted > 0) sends_.end_chain(m.handle(), error == 0);
  return posted;
}

void UdEndpoint::recover() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_SQE;
  const int error = device_.api().modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
  send_broken_ = false;
  // More than the send error state: the receives have failed as well.
  if (error != 0) note_broken("it cannot send any more");
  // None of the posted requests will complete any more.
  sends_.let_go(sends_.posted());
}

}  // namespace mcast::verbs
