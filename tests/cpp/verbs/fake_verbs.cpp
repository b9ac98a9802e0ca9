// Delivery happens inside post_send(), so a test sees every consequence of a call when it returns,
// except for event channels, whose events must be fetched as from the kernel.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/fake_state.h"

namespace mcast::testing {
FakeVerbs::FakeVerbs() {
  context_.async_fd = semaphore();
  context_.cmd_fd = -1;
  context_.device = &device_;
  attr.max_qp_wr = 16384;
  attr.max_cqe = 65536;
  attr.max_mcast_grp = 64;
  attr.max_sge = 30;
  attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = 16;
}

FakeVerbs::~FakeVerbs() {
  ::close(context_.async_fd);
  // An abandoned endpoint, as in the child of a fork, leaves everything behind on purpose.
  if (!channels_.empty()) return;
  EXPECT_TRUE(qps_.empty()) << "queue pairs were left";
  EXPECT_TRUE(keys_.empty()) << "registrations were left";
  EXPECT_TRUE(ids_.empty()) << "identifiers were left";
  EXPECT_EQ(overflows, 0u);
}

int FakeVerbs::device_count() { return devices; }

int FakeVerbs::query_device(ibv_context*, ibv_device_attr* out) {
  *out = attr;
  return 0;
}

int FakeVerbs::query_port(ibv_context*, uint8_t, ibv_port_attr* out) {
  *out = {};
  out->state = port_state;
  out->link_layer = link_layer;
  out->active_mtu = mtu;
  out->lid = 7;
  out->pkey_tbl_len = static_cast<uint16_t>(pkeys.size());
  return 0;
}

int FakeVerbs::query_pkey(ibv_context*, uint8_t, int index, uint16_t* out) {
  if (static_cast<size_t>(index) >= pkeys.size()) return EINVAL;
  *out = pkeys[static_cast<size_t>(index)];
  return 0;
}

int FakeVerbs::query_gid(ibv_context*, uint8_t, int index, ibv_gid* out) {
  if (index != gid_index) return EINVAL;
  *out = own_gid();
  return 0;
}

ibv_gid FakeVerbs::own_gid() const {
  ibv_gid gid{};
  if (link_layer == IBV_LINK_LAYER_INFINIBAND) {
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
    gid.raw[15] = 7;
    return gid;
  }
  gid.raw[10] = gid.raw[11] = 0xff;
  in_addr from{};
  ::inet_aton(address.c_str(), &from);
  std::memcpy(gid.raw + 12, &from, 4);
  return gid;
}

std::vector<std::byte> FakeVerbs::routing_header(const ibv_gid& from) const {
  std::vector<std::byte> bytes(40);
  if (link_layer == IBV_LINK_LAYER_INFINIBAND || ipv6) {
    bytes[0] = std::byte{0x60};
    std::memcpy(bytes.data() + 8, from.raw, 16);
    return bytes;
  }
  // RoCE v2 over IPv4: 20 undefined bytes, then the IP header.
  bytes[20] = std::byte{0x45};
  std::memcpy(bytes.data() + 32, from.raw + 12, 4);
  return bytes;
}

ibv_pd* FakeVerbs::alloc_pd(ibv_context*) {
  pds_.push_back({&context_, next_++});
  return &pds_.back();
}

int FakeVerbs::dealloc_pd(ibv_pd* pd) {
  pds_.remove_if([pd](const ibv_pd& p) { return &p == pd; });
  return 0;
}

ibv_mr* FakeVerbs::reg_mr(ibv_pd* pd, void* at, size_t size, int access) {
  if (registration_error != 0 || size > largest_registration) {
    errno = registration_error != 0 ? registration_error : ENOMEM;
    return nullptr;
  }
  auto owned = std::make_unique<ibv_mr>();
  ibv_mr* const mr = owned.get();
  mr->pd = pd;
  mr->lkey = mr->rkey = next_++;
  if ((access & IBV_ACCESS_REMOTE_READ) != 0) ++remote_registrations_ever;
  keys_[mr->lkey] = {static_cast<std::byte*>(at), size, access, std::move(owned)};
  return mr;
}

int FakeVerbs::dereg_mr(ibv_mr* mr) {
  for (const HeldSend& held : held_) {
    for (const ibv_sge& piece : held.pieces) destroyed_in_use += piece.lkey == mr->lkey ? 1 : 0;
  }
  EXPECT_EQ(keys_.erase(mr->lkey), 1u);
  return 0;
}

ibv_comp_channel* FakeVerbs::create_comp_channel(ibv_context*) {
  comp_channels_.emplace_back();
  comp_channels_.back().fd = semaphore();
  return &comp_channels_.back();
}

int FakeVerbs::destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  comp_channels_.remove_if([channel](const CompChannel& c) { return &c == channel; });
  return 0;
}

ibv_cq* FakeVerbs::create_cq(ibv_context*, int depth, void*, ibv_comp_channel* channel) {
  cqs_.emplace_back();
  cqs_.back().depth = static_cast<size_t>(depth);
  for (CompChannel& c : comp_channels_) {
    if (&c == channel) cqs_.back().comp = &c;
  }
  return &cqs_.back();
}

int FakeVerbs::destroy_cq(ibv_cq* cq) {
  for (CompChannel& c : comp_channels_) std::erase(c.events, cq);
  cqs_.remove_if([cq](const Cq& c) { return &c == cq; });
  return 0;
}

int FakeVerbs::poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
  Cq& c = *static_cast<Cq*>(cq);
  if (c.overrun) return -EIO;
  int n = 0;
  for (; n < most && !c.entries.empty(); ++n) {
    out[n] = c.entries.front();
    c.entries.pop_front();
  }
  return n;
}

int FakeVerbs::req_notify_cq(ibv_cq* cq) {
  ++arms;
  static_cast<Cq*>(cq)->armed = true;
  return 0;
}

int FakeVerbs::get_cq_event(ibv_comp_channel* channel, ibv_cq** cq) {
  auto& c = *static_cast<CompChannel*>(channel);
  if (!take(c.fd)) return EAGAIN;
  *cq = c.events.empty() ? nullptr : c.events.front();
  if (!c.events.empty()) c.events.pop_front();
  return 0;
}

void FakeVerbs::complete(Cq& cq, ibv_wc wc) {
  if (cq.entries.size() >= cq.depth) {
    // A device overwrites existing entries and puts the queue into the error state.
    ++overflows;
    cq.overrun = true;
    return;
  }
  cq.entries.push_back(wc);
  if (std::exchange(cq.armed, false)) {
    cq.comp->events.push_back(&cq);
    ring(cq.comp->fd);
  }
}

ibv_qp* FakeVerbs::create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  if (qp_error != 0) {
    errno = qp_error;
    return nullptr;
  }
  qps_.emplace_back();
  Qp& qp = qps_.back();
  qp.context = &context_;
  qp.pd = pd;
  qp.qp_num = next_++;
  qp.qp_type = init->qp_type;
  qp.state = IBV_QPS_RESET;
  qp.send = static_cast<Cq*>(init->send_cq);
  qp.receive = static_cast<Cq*>(init->recv_cq);
  qp.cap = init->cap;
  qp.send->promised += qp.cap.max_send_wr;
  qp.receive->promised += qp.cap.max_recv_wr;
  if (qp.receive->promised > qp.receive->depth) ++overcommits;
  return &qp;
}

int FakeVerbs::modify_qp(ibv_qp* raw, ibv_qp_attr* change, int mask) {
  Qp& qp = *find(raw);
  if ((mask & IBV_QP_PKEY_INDEX) != 0) qp.pkey_index = change->pkey_index;
  if ((mask & IBV_QP_QKEY) != 0) qp.key = change->qkey;
  if ((mask & IBV_QP_STATE) == 0) return 0;
  const auto to = change->qp_state;
  const bool legal = to == IBV_QPS_ERR || (qp.state == IBV_QPS_RESET && to == IBV_QPS_INIT) ||
                     (qp.state == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
                     (qp.state == IBV_QPS_RTR && to == IBV_QPS_RTS) ||
                     (qp.state == IBV_QPS_SQE && to == IBV_QPS_RTS);
  if (!legal) return EINVAL;
  qp.state = to;
  return 0;
}

int FakeVerbs::destroy_qp(ibv_qp* raw) {
  Qp* const qp = find(raw);
  for (Qp& other : qps_) {
    if (other.peer == qp) other.peer = nullptr;
  }
  std::erase_if(held_, [qp](const HeldSend& held) { return held.qp == qp; });
  std::erase_if(held_reads_, [qp](const HeldSend& held) { return held.qp == qp; });
  qp->send->promised -= qp->cap.max_send_wr;
  qp->receive->promised -= qp->cap.max_recv_wr;
  qps_.remove_if([qp](const Qp& q) { return &q == qp; });
  return 0;
}

FakeVerbs::Qp* FakeVerbs::find(const ibv_qp* raw) {
  for (Qp& qp : qps_) {
    if (&qp == raw) return &qp;
  }
  ADD_FAILURE() << "a queue pair that is gone was used";
  static Qp none;
  return &none;
}

bool FakeVerbs::inside(uint32_t key, uint64_t at, size_t size, int access) const {
  const auto it = keys_.find(key);
  if (it == keys_.end() || (it->second.access & access) != access) return false;
  const auto begin = reinterpret_cast<uint64_t>(it->second.at);
  return at >= begin && at + size <= begin + it->second.size;
}

bool FakeVerbs::gather(const Qp& qp, const ibv_send_wr& wr, std::vector<std::byte>& out) const {
  if (static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return false;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& s = wr.sg_list[i];
    if (!inside(s.lkey, s.addr, s.length, 0)) return false;
    const auto* at = reinterpret_cast<const std::byte*>(s.addr);
    out.insert(out.end(), at, at + s.length);
  }
  return true;
}

int FakeVerbs::post_recv(ibv_qp* raw, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Qp& qp = *find(raw);
  for (; wr != nullptr; wr = wr->next) {
    if (qp.receives.size() >= qp.cap.max_recv_wr) {
      *bad = wr;
      return ENOMEM;
    }
    EXPECT_TRUE(inside(wr->sg_list[0].lkey, wr->sg_list[0].addr, wr->sg_list[0].length,
                       IBV_ACCESS_LOCAL_WRITE));
    qp.receives.push_back({wr->wr_id, wr->sg_list[0]});
  }
  if (qp.state == IBV_QPS_ERR) flush_receives(qp);
  return 0;
}

int FakeVerbs::post_send(ibv_qp* raw, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = *find(raw);
  ++send_posts;
  for (; wr != nullptr; wr = wr->next) {
    const bool full = qp.in_flight >= qp.cap.max_send_wr;
    if (full || refuse_posts > 0) {
      if (!full) --refuse_posts;
      *bad = wr;
      return ENOMEM;
    }
    if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) {
      qp.in_flight = 0;
    } else {
      ++qp.in_flight;
      ++unsignalled;
    }
    if (qp.state == IBV_QPS_ERR || (qp.qp_type == IBV_QPT_UD && qp.state == IBV_QPS_SQE)) {
      ibv_wc wc{};
      wc.wr_id = wr->wr_id;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.qp_num = qp.qp_num;
      complete(*qp.send, wc);
    } else if (qp.qp_type == IBV_QPT_UD && hold_sends) {
      held_.push_back({&qp, *wr, {wr->sg_list, wr->sg_list + wr->num_sge}});
    } else if (qp.qp_type == IBV_QPT_UD) {
      send_datagram(qp, *wr);
    } else if (wr->opcode == IBV_WR_RDMA_READ && hold_reads) {
      held_reads_.push_back({&qp, *wr, {wr->sg_list, wr->sg_list + wr->num_sge}});
    } else if (wr->opcode == IBV_WR_RDMA_READ) {
      read(qp, *wr);
    } else {
      send_message(qp, *wr);
    }
  }
  return 0;
}

bool FakeVerbs::deliver(Qp& to, const std::vector<std::byte>& bytes, uint32_t from, bool datagram) {
  if (to.receives.empty()) return false;
  const auto receive = to.receives.front();
  to.receives.pop_front();
  ibv_wc wc{};
  wc.wr_id = receive.wr_id;
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = to.qp_num;
  wc.src_qp = from;
  wc.byte_len = static_cast<uint32_t>(bytes.size());
  wc.slid = link_layer == IBV_LINK_LAYER_INFINIBAND ? 7 : 0;
  wc.wc_flags = datagram ? static_cast<unsigned>(IBV_WC_GRH) : 0u;
  wc.status = receive_status;
  if (bytes.size() > receive.sge.length) wc.status = IBV_WC_LOC_LEN_ERR;
  if (wc.status == IBV_WC_SUCCESS && !bytes.empty()) {
    std::memcpy(reinterpret_cast<void*>(receive.sge.addr), bytes.data(), bytes.size());
  }
  complete(*to.receive, wc);
  if (wc.status != IBV_WC_SUCCESS) {
    to.state = IBV_QPS_ERR;
    if (datagram) flush_receives(to);
  }
  return true;
}

void FakeVerbs::send_datagram(Qp& qp, const ibv_send_wr& wr) {
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.opcode = IBV_WC_SEND;
  wc.qp_num = qp.qp_num;
  wc.status = datagram_status;
  const auto* const handle = static_cast<const Handle*>(wr.wr.ud.ah);
  if (std::none_of(handles_.begin(), handles_.end(),
                   [handle](const Handle& h) { return &h == handle; })) {
    ++destroyed_in_use;
    wc.status = IBV_WC_LOC_QP_OP_ERR;
  }
  std::vector<std::byte> bytes = routing_header(own_gid());
  if (!gather(qp, wr, bytes)) wc.status = IBV_WC_LOC_PROT_ERR;
  if (wc.status != IBV_WC_SUCCESS) {
    qp.state = IBV_QPS_SQE;
    complete(*qp.send, wc);
    return;
  }
  used_qkeys.push_back(wr.wr.ud.remote_qkey);
  gathered.push_back(wr.num_sge);
  const std::string mgid(reinterpret_cast<const char*>(handle->attr.grh.dgid.raw), 16);
  const bool stranger = link_layer == IBV_LINK_LAYER_INFINIBAND &&
                        (pkeys.at(qp.pkey_index) & 0x7fff) != (partition & 0x7fff);
  if (stranger) ++wrong_partition;
  if (wr.wr.ud.remote_qpn == multicast_qpn && !stranger) {
    for (Qp& to : qps_) {
      const auto group = to.groups.find(mgid);
      if (group == to.groups.end() || group->second != handle->attr.dlid) continue;
      if (to.key != wr.wr.ud.remote_qkey) continue;
      std::vector<std::byte> copy = bytes;
      if (on_datagram && !on_datagram(copy)) continue;
      if (!deliver(to, copy, qp.qp_num, true)) ++lost_without_receive;
    }
  }
  if ((wr.send_flags & IBV_SEND_SIGNALED) != 0) complete(*qp.send, wc);
}

void FakeVerbs::break_qp(Qp& qp, ibv_wc_status status, uint64_t wr_id, ibv_wc_opcode opcode) {
  ibv_wc wc{};
  wc.wr_id = wr_id;
  wc.opcode = opcode;
  wc.qp_num = qp.qp_num;
  wc.status = status;
  complete(*qp.send, wc);
  qp.state = IBV_QPS_ERR;
  flush_receives(qp);
}

void FakeVerbs::flush_receives(Qp& qp) {
  ibv_wc wc{};
  wc.opcode = IBV_WC_RECV;
  wc.qp_num = qp.qp_num;
  wc.status = IBV_WC_WR_FLUSH_ERR;
  flushed_receives += qp.receives.size();
  for (const auto& receive : std::exchange(qp.receives, {})) {
    wc.wr_id = receive.wr_id;
    complete(*qp.receive, wc);
  }
}

void FakeVerbs::send_message(Qp& qp, const ibv_send_wr& wr) {
  std::vector<std::byte> bytes;
  ibv_wc_status status = send_status;
  if (status == IBV_WC_SUCCESS && qp.peer == nullptr) status = IBV_WC_RETRY_EXC_ERR;
  if (status == IBV_WC_SUCCESS && !gather(qp, wr, bytes)) status = IBV_WC_LOC_PROT_ERR;
  const bool arrives = status == IBV_WC_SUCCESS && (!on_message || on_message(bytes, qp.qp_num));
  if (arrives && !deliver(*qp.peer, bytes, qp.qp_num, false)) {
    status = IBV_WC_RNR_RETRY_EXC_ERR;
  }
  if (status != IBV_WC_SUCCESS) {
    break_qp(qp, status, wr.wr_id, IBV_WC_SEND);
    return;
  }
  if ((wr.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.opcode = IBV_WC_SEND;
  wc.qp_num = qp.qp_num;
  if (qp.qp_num == hold_completions_of) {
    held_completions_.emplace_back(qp.send, wc);
  } else {
    complete(*qp.send, wc);
  }
}

void FakeVerbs::read(Qp& qp, const ibv_send_wr& wr) {
  const ibv_sge& to = wr.sg_list[0];
  ibv_wc wc{};
  wc.wr_id = wr.wr_id;
  wc.opcode = IBV_WC_RDMA_READ;
  wc.qp_num = qp.qp_num;
  wc.status = read_status;
  if (wc.status == IBV_WC_SUCCESS && qp.peer == nullptr) wc.status = IBV_WC_RETRY_EXC_ERR;
  if (wc.status == IBV_WC_SUCCESS && !inside(to.lkey, to.addr, to.length, IBV_ACCESS_LOCAL_WRITE)) {
    wc.status = IBV_WC_LOC_PROT_ERR;
  }
  if (wc.status == IBV_WC_SUCCESS &&
      !inside(wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, to.length, IBV_ACCESS_REMOTE_READ)) {
    wc.status = IBV_WC_REM_ACCESS_ERR;
  }
  if (wc.status != IBV_WC_SUCCESS) {
    break_qp(qp, wc.status, wr.wr_id, IBV_WC_RDMA_READ);
    return;
  }
  wc.byte_len = to.length - static_cast<uint32_t>(cut_read);
  std::memcpy(reinterpret_cast<void*>(to.addr),
              reinterpret_cast<const void*>(wr.wr.rdma.remote_addr), wc.byte_len);
  complete(*qp.send, wc);
}

ibv_ah* FakeVerbs::create_ah(ibv_pd* pd, ibv_ah_attr* a) {
  handles_.emplace_back();
  handles_.back().pd = pd;
  handles_.back().attr = *a;
  return &handles_.back();
}

int FakeVerbs::destroy_ah(ibv_ah* ah) {
  for (const HeldSend& held : held_) destroyed_in_use += held.wr.wr.ud.ah == ah ? 1 : 0;
  handles_.remove_if([ah](const Handle& h) { return &h == ah; });
  return 0;
}

int FakeVerbs::attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (attach_error != 0) return attach_error;
  find(qp)->groups[std::string(reinterpret_cast<const char*>(gid->raw), 16)] = lid;
  return 0;
}

int FakeVerbs::detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t) {
  find(qp)->groups.erase(std::string(reinterpret_cast<const char*>(gid->raw), 16));
  return 0;
}

int FakeVerbs::get_async_event(ibv_context*, ibv_async_event* event) {
  if (!take(context_.async_fd)) return EAGAIN;
  *event = async_.front();
  async_.pop_front();
  return 0;
}

}  // namespace mcast::testing
