// Functions by which tests act on the device in memory from outside: releasing held work, events,
// breakage.
#include <algorithm>
#include <utility>

#include "verbs/fake_state.h"

namespace mcast::testing {

void FakeVerbs::let_sends_go() {
  hold_sends = false;
  for (; !held_.empty(); held_.pop_front()) {
    HeldSend& held = held_.front();
    held.wr.sg_list = held.pieces.data();
    send_datagram(*held.qp, held.wr);
  }
}

void FakeVerbs::let_reads_go() {
  hold_reads = false;
  for (; !held_reads_.empty(); held_reads_.pop_front()) {
    HeldSend& held = held_reads_.front();
    held.wr.sg_list = held.pieces.data();
    read(*held.qp, held.wr);
  }
}

void FakeVerbs::let_completions_go() {
  hold_completions_of = 0;
  for (auto& [cq, wc] : std::exchange(held_completions_, {})) complete(*cq, wc);
}

void FakeVerbs::raise(ibv_event_type type, uint32_t qp_number, int port) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  if (type == IBV_EVENT_QP_FATAL) {
    event.element.qp = nullptr;
    for (Qp& qp : qps_) {
      if (qp_number == 0 ? qp.qp_type == IBV_QPT_RC : qp.qp_num == qp_number) {
        event.element.qp = &qp;
      }
    }
    ASSERT_NE(event.element.qp, nullptr);
  }
  async_.push_back(event);
  ring(context_.async_fd);
}

void FakeVerbs::inject_namesake(const std::vector<std::byte>& payload) {
  ibv_gid other = own_gid();
  other.raw[14] ^= 1;
  std::vector<std::byte> bytes = routing_header(other);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  for (Qp& qp : qps_) {
    if (!qp.groups.empty()) deliver(qp, bytes, qp.qp_num, true);
  }
}

void FakeVerbs::break_datagrams(bool event) {
  for (Qp& qp : qps_) {
    if (qp.qp_type != IBV_QPT_UD) continue;
    qp.state = IBV_QPS_ERR;
    if (event) {
      raise(IBV_EVENT_QP_FATAL, qp.qp_num);
    } else {
      flush_receives(qp);
    }
  }
}

void FakeVerbs::break_connections(ibv_wc_status status) {
  for (Qp& qp : qps_) {
    if (qp.qp_type == IBV_QPT_RC && qp.state == IBV_QPS_RTS) {
      break_qp(qp, status, uint64_t{0xffffffff} << 32, IBV_WC_SEND);
    }
  }
}

void FakeVerbs::inject_message(const std::vector<std::byte>& bytes) {
  for (Qp& qp : qps_) {
    if (qp.qp_type == IBV_QPT_RC) deliver(qp, bytes, 0, false);
  }
}

void FakeVerbs::inject_from(uint32_t qp_number, const std::vector<std::byte>& bytes) {
  for (Qp& qp : qps_) {
    if (qp.qp_num == qp_number && qp.peer != nullptr) deliver(*qp.peer, bytes, qp_number, false);
  }
}

void FakeVerbs::take_receives_away() {
  for (Qp& qp : qps_) {
    if (qp.qp_type == IBV_QPT_RC) qp.receives.clear();
  }
}

std::set<uint16_t> FakeVerbs::attached_lids() const {
  std::set<uint16_t> lids;
  for (const Qp& qp : qps_) {
    for (const auto& [gid, lid] : qp.groups) lids.insert(lid);
  }
  return lids;
}

size_t FakeVerbs::remote_registrations() const {
  return static_cast<size_t>(std::count_if(keys_.begin(), keys_.end(), [](const auto& entry) {
    return (entry.second.access & IBV_ACCESS_REMOTE_READ) != 0;
  }));
}

std::vector<uint32_t> FakeVerbs::connection_numbers() const {
  std::vector<uint32_t> out;
  for (const Qp& qp : qps_) {
    if (qp.qp_type == IBV_QPT_RC) out.push_back(qp.qp_num);
  }
  return out;
}

}  // namespace mcast::testing
