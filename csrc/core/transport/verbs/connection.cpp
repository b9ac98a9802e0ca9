// Messages are sent from a ring of registered entries, in order, so one completion frees all
// entries before it; the last message before a pause is always signalled. A message needs a credit,
// that is, a receive that the peer has posted: so a receiver always has one, and retries for that
// case stay few. Time-outs and retries are chosen so that a peer that does not respond is detected
// within half the liveness limit.
#include "transport/verbs/connection.h"
#include "base/socket_address.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mcast::verbs {
namespace {

constexpr uint8_t kRetries = 7;
// Credits make this case impossible unless the peer breaks the protocol.
constexpr uint8_t kNotReadyRetries = 3;

// Exponent e of an acknowledgement time-out 4.096 us * 2^e. Devices wait up to four times as long,
// 1 + kRetries times.
uint8_t ack_timeout(Nanos liveness_limit) {
  const Nanos most = liveness_limit / 2 / 4 / (1 + kRetries);
  uint8_t e = 8;
  while (e < 20 && (Nanos{4096} << (e + 1)) <= most) ++e;
  return e;
}

}  // namespace

Status Connection::resolve(const Endpoint& from, const Endpoint& to, int timeout_ms) {
  auto id = cm_.make(this, RDMA_PS_TCP);
  if (!id.ok()) return id.status();
  id_ = *id;
  SocketAddress source(from), target(to);
  const int error = device_.api().resolve_addr(id_, source.get(), target.get(), timeout_ms);
  return error == 0 ? Status() : Status::system(error, "rdma_resolve_addr");
}

void Connection::adopt(rdma_cm_id* id) {
  id_ = id;
  id_->context = static_cast<CmHandler*>(this);
}

Status Connection::resolve_route(int timeout_ms) {
  const int error = device_.api().resolve_route(id_, timeout_ms);
  return error == 0 ? Status() : Status::system(error, "rdma_resolve_route");
}

Status Connection::prepare(std::shared_ptr<CompletionQueue> cq, Nanos liveness_limit) {
  if (id_->verbs != device_.context()) {
    return Status(Code::kUnavailable, "the route to the peer leaves by another RDMA device than " +
                                          device_.port().text());
  }
  Api& api = device_.api();
  if (Status s = entries_.open(api, device_.pd(), (kReceives + kSends) * kEntry); !s.ok()) return s;
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_RC;
  cq_ = std::move(cq);
  init.send_cq = init.recv_cq = cq_->get();
  init.cap.max_send_wr = static_cast<uint32_t>(kSends + kReads);
  init.cap.max_recv_wr = static_cast<uint32_t>(kReceives);
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  uint8_t timeout = ack_timeout(liveness_limit);
  // Not every kernel accepts this option; the kernel's own value is bounded too, but longer.
  (void)api.set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
  if (const int e = api.create_cm_qp(id_, device_.pd(), &init); e != 0) {
    return Status::system(e, "rdma_create_qp (RC)");
  }
  for (uint32_t entry = 0; entry < kReceives; ++entry) {
    if (Status s = repost(entry); !s.ok()) return s;
  }
  return {};
}

Status Connection::connect(ConstBytes hello) {
  rdma_conn_param param{};
  param.private_data = hello.data();
  param.private_data_len = static_cast<uint8_t>(hello.size());
  param.responder_resources =
      static_cast<uint8_t>(std::clamp(device_.attr().max_qp_rd_atom, 0, 16));
  param.initiator_depth =
      static_cast<uint8_t>(std::clamp(device_.attr().max_qp_init_rd_atom, 0, 16));
  param.retry_count = kRetries;
  param.rnr_retry_count = kNotReadyRetries;
  const int error = device_.api().connect(id_, &param);
  return error == 0 ? Status() : Status::system(error, "rdma_connect");
}

Status Connection::accept(ConstBytes challenge) {
  rdma_conn_param param{};
  param.private_data = challenge.data();
  param.private_data_len = static_cast<uint8_t>(challenge.size());
  param.responder_resources =
      static_cast<uint8_t>(std::clamp(device_.attr().max_qp_rd_atom, 0, 16));
  param.initiator_depth =
      static_cast<uint8_t>(std::clamp(device_.attr().max_qp_init_rd_atom, 0, 16));
  param.rnr_retry_count = kNotReadyRetries;
  const int error = device_.api().accept(id_, &param);
  return error == 0 ? Status() : Status::system(error, "rdma_accept");
}

void Connection::close() {
  state = State::kDead;
  if (id_ == nullptr || abandoned_) return;
  if (id_->qp != nullptr) {
    (void)device_.take_broken(id_->qp->qp_num);
    device_.api().destroy_cm_qp(id_);
  }
  cm_.destroy(id_);
  id_ = nullptr;
}

void Connection::disconnect() { (void)device_.api().disconnect(id_); }

void Connection::abandon() noexcept {
  abandoned_ = true;
  entries_.abandon();
  reads_.memory.abandon();
}

std::byte* Connection::receive_at(uint32_t entry) const { return entries_.data() + entry * kEntry; }

std::byte* Connection::send_at(uint64_t number) const {
  return entries_.data() + (kReceives + number % kSends) * kEntry;
}

bool Connection::can_send(bool data) const noexcept {
  const uint64_t in_use = posted_ - done_;
  // The last two entries are reserved for messages that return credits; otherwise both sides could
  // wait for each other.
  return data ? receives_.credits > 0 && in_use < kSends - 2 : in_use < kSends;
}

size_t Connection::room() const noexcept {
  return kEntry - (guard ? crypto::record_size(kMessageHeader, false) : kMessageHeader);
}

Status Connection::send_message(Message message, ConstBytes piece, bool signal) {
  if (message.kind != Kind::kCredit) --receives_.credits;
  message.credits = std::exchange(receives_.owed, uint16_t{0});
  std::byte* const at = send_at(posted_);
  const size_t whole = kMessageHeader + piece.size();
  if (guard) {
    std::array<std::byte, kMessageHeader> header;
    write_message(header.data(), message);
    const std::array<ConstBytes, 2> body{header, piece};
    if (!guard->records.seal(std::nullopt, body, at)) {
      guard->used_up = true;
      return Status(Code::kResourceExhausted, "no keys");
    }
    return post(crypto::record_size(whole, false), signal);
  }
  write_message(at, message);
  if (!piece.empty()) std::memcpy(at + kMessageHeader, piece.data(), piece.size());
  return post(whole, signal);
}

Status Connection::send_plain(ConstBytes bytes) {
  --receives_.credits;
  std::memcpy(send_at(posted_), bytes.data(), bytes.size());
  return post(bytes.size(), true);
}

Status Connection::post(size_t size, bool signal) {
  std::byte* const at = send_at(posted_);
  ibv_sge sge{reinterpret_cast<uint64_t>(at), static_cast<uint32_t>(size), entries_.lkey()};
  ibv_send_wr wr{};
  const uint64_t number = ++posted_;
  wr.wr_id = wr_id(Work::kSend, static_cast<uint32_t>(number & 0xfffffff));
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  // Signal often enough that entries never run out behind unsignalled ones.
  wr.send_flags = signal || number % (kSends / 2) == 0 ? IBV_SEND_SIGNALED : 0;
  ibv_send_wr* bad = nullptr;
  const int error = device_.api().post_send(id_->qp, &wr, &bad);
  return error == 0 ? Status() : Status::system(error, "ibv_post_send");
}

size_t Connection::take_read_entry() {
  for (size_t i = 0; i < kReads; ++i) {
    if (!reads_.busy[i]) {
      reads_.busy[i] = true;
      return i;
    }
  }
  return kReads;
}

ConstBytes Connection::read_entry(size_t index, size_t length) const {
  return {reads_.memory.data() + index * kReadBytes, length};
}

Status Connection::read(size_t index, uint64_t address, uint32_t rkey, size_t length) {
  if (reads_.memory.data() == nullptr) {
    if (Status s = reads_.memory.open(device_.api(), device_.pd(), kReads * kReadBytes); !s.ok())
      return s;
  }
  ibv_sge sge{reinterpret_cast<uint64_t>(reads_.memory.data() + index * kReadBytes),
              static_cast<uint32_t>(length), reads_.memory.lkey()};
  ibv_send_wr wr{};
  wr.wr_id = wr_id(Work::kRead, static_cast<uint32_t>(index));
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  const int error = device_.api().post_send(id_->qp, &wr, &bad);
  if (error == 0) ++stats_.reads_posted;
  return error == 0 ? Status() : Status::system(error, "ibv_post_send of an RDMA Read");
}

ConstBytes Connection::received(const ibv_wc& wc) const {
  return {receive_at(number_of(wc.wr_id)), std::min<size_t>(wc.byte_len, kEntry)};
}

Status Connection::repost(uint32_t entry) {
  ibv_sge sge{reinterpret_cast<uint64_t>(receive_at(entry)), static_cast<uint32_t>(kEntry),
              entries_.lkey()};
  ibv_recv_wr wr{wr_id(Work::kReceive, entry), nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  const int error = device_.api().post_recv(id_->qp, &wr, &bad);
  return error == 0 ? Status() : Status::system(error, "ibv_post_recv");
}

}  // namespace mcast::verbs
