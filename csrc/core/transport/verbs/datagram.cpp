// Groups and the receiving half; datagram_send.cpp has the sending half. The whole ring of receives
// is posted in advance. A datagram that finds no posted receive is lost without a trace, so entries
// are posted again in chains: as soon as a chain is full, or immediately if few posted ones are
// left. Completions of both kinds share the queue; receives that are found while a sender looks for
// room are kept until receive().
#include "transport/verbs/datagram.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "base/socket_address.h"
#include "transport/udp/socket.h"

namespace mcast::verbs {
namespace {

constexpr uint64_t kReceiveTag = uint64_t{1} << 63;  // marks receives in work request ids

}  // namespace

UdEndpoint::~UdEndpoint() {
  if (abandoned_) return;
  // Destroy in this order: attachments to the queue pair, the queue pair, the objects that its
  // requests used, the memory.
  groups_.clear();
  if (qp_ != nullptr) {
    (void)device_.take_broken(qp_number_);
    (void)device_.api().destroy_qp(qp_);
  }
  sends_.close();
}

Status UdEndpoint::open(const VerbsOptions& options) {
  options_ = options;
  Status status = receives_.open(device_, options.rcvbuf);
  if (status.ok()) status = sends_.open(device_);
  if (status.ok()) {
    status = cq_.open(static_cast<int>(receives_.entries() + kSendEntries), "datagrams");
  }
  // (A guarded datagram is assembled as a whole, in the ring.)
  if (!options.identity && device_.attr().max_sge >= 2 && device_.api().fork_copies()) {
    sources_.emplace(device_.regions(), device_.mtu(), device_.api().lock_limit(), stats_);
  }
  if (status.ok()) status = make_qp();
  if (!status.ok()) return status;
  post_receives();
  address_changes_ = device_.address_changes();
  return {};
}

Status UdEndpoint::make_qp() {
  Api& api = device_.api();
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_UD;
  init.send_cq = init.recv_cq = cq_.get();
  init.cap.max_send_wr = kSendEntries;
  init.cap.max_recv_wr = static_cast<uint32_t>(receives_.entries());
  init.cap.max_send_sge = sources_ ? 2 : 1;
  init.cap.max_recv_sge = 1;
  qp_ = api.create_qp(device_.pd(), &init);
  if (qp_ == nullptr) return Status::system(errno, "ibv_create_qp (UD)");
  qp_number_ = qp_->qp_num;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = device_.port().number;
  attr.pkey_index = device_.pkey_index();
  int error =
      api.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  attr.qp_state = IBV_QPS_RTR;
  if (error == 0) error = api.modify_qp(qp_, &attr, IBV_QP_STATE);
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = static_cast<uint32_t>(secure_random64() & 0xffffff);
  if (error == 0) error = api.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
  return error == 0 ? Status() : Status::system(error, "ibv_modify_qp (UD)");
}

Status UdEndpoint::join(const MulticastAddress& address) {
  if (address.port == 0) return Status(Code::kInvalidArgument, "multicast port 0");
  if (Status s = device_.condition(true); !s.ok()) return s;
  if (broken_) {
    return Status(Code::kUnavailable, "RDMA device " + device_.port().text() +
                                          ": the queue pair for datagrams broke" +
                                          (problem_.ok() ? "" : ": " + problem_.message()));
  }
  Group& group = groups_[address];
  if (group.joins > 0) {
    ++group.joins;
    return {};
  }
  const auto joined = std::count_if(groups_.begin(), groups_.end(),
                                    [](const auto& g) { return g.second.joins > 0; });
  const size_t most =
      std::min(kMaxGroups, static_cast<size_t>(std::max(0, device_.attr().max_mcast_grp)));
  if (static_cast<size_t>(joined) >= most) {
    if (!group.membership) groups_.erase(address);
    return Status(Code::kResourceExhausted, "RDMA device " + device_.port().text() + ": at most " +
                                                std::to_string(most) + " multicast groups at once");
  }
  group.membership =
      std::make_unique<Membership>(device_, cm_, stats_, qp_, address, false, options_);
  Membership& membership = *group.membership;
  membership.start();
  // Wait in small steps: each ends with an event, or lets the time limit be checked.
  constexpr Nanos kStep = 5 * kMilli;
  for (Nanos waited = 0; membership.state() == Membership::State::kJoining; waited += kStep) {
    if (waited >= options_.join_patience) {
      forget(groups_.find(address));
      return Status(Code::kUnavailable, "RDMA device " + device_.port().text() +
                                            ": no answer to the multicast join within " +
                                            seconds_text(options_.join_patience) +
                                            " (InfiniBand: is a subnet manager running?)");
    }
    cm_.wait(kStep);
    (void)cm_.poll();
    post_receives();
  }
  if (membership.state() == Membership::State::kFailed) {
    const Status why = membership.failure();
    forget(groups_.find(address));
    return why;
  }
  group.joins = 1;
  return {};
}

void UdEndpoint::leave(const MulticastAddress& address) {
  const auto it = groups_.find(address);
  if (it == groups_.end() || it->second.joins == 0 || --it->second.joins > 0) return;
  push(it->second);
  reap();
  // Queue no more datagrams for this group. Datagrams being sent hold the address handle.
  forget(it);
}

void UdEndpoint::forget(Groups::iterator group) {
  while (!group->second.queue.empty()) drop_head(group->second);
  groups_.erase(group);
}

UdEndpoint::Group& UdEndpoint::find_or_start(const MulticastAddress& address) {
  const auto [it, added] = groups_.try_emplace(address);
  if (added) {
    // A sender that has not joined still needs the group's address vector.
    it->second.membership =
        std::make_unique<Membership>(device_, cm_, stats_, qp_, address, true, options_);
    it->second.membership->start();
  }
  return it->second;
}

void UdEndpoint::reap() {
  ibv_wc wc;
  // Bounded by the depth of the queue: new arrivals must not keep a sender here.
  for (size_t left = receives_.entries() + kSendEntries; left > 0 && cq_.next(wc); --left)
    on_completion(wc);
  // Requests that were dropped behind it, or refused with the rest of its chain, have no
  // completion. (If the device is still reading memory that is freed here, the registration ends
  // with the memory, and the datagram fails.)
  sends_.let_go_unreported();
  if (send_broken_ && !broken_) recover();
}

void UdEndpoint::on_completion(const ibv_wc& wc) {
  if ((wc.wr_id & kReceiveTag) == 0) {
    ++stats_.send_completions;
    if (wc.status != IBV_WC_SUCCESS) {
      ++stats_.send_errors;
      send_broken_ = true;
    }
    sends_.let_go(wc.wr_id);
    return;
  }
  const auto entry = static_cast<uint32_t>(wc.wr_id & 0xffffffff);
  if (wc.status != IBV_WC_SUCCESS) {
    receives_.flushed(entry);
    if (wc.status != IBV_WC_WR_FLUSH_ERR) {
      ++stats_.receive_errors;
    } else {
      // Receives posted from now on would be flushed immediately, again and again.
      note_broken("its receives were flushed");
    }
    return;
  }
  receives_.arrive({entry, wc.byte_len, is_own(wc, receives_.at(entry))});
}

// Queue pair numbers are unique per device only, so hosts have the same ones: the sender's address
// must be ours too.
bool UdEndpoint::is_own(const ibv_wc& wc, const std::byte* header) const {
  if (wc.src_qp != qp_number_ || (wc.wc_flags & IBV_WC_GRH) == 0) return false;
  // RoCE v2 over IPv4: the IP header is in the last 20 of the 40 bytes, the first 20 are undefined.
  const in_addr own = in4_of(device_.port().interface.address);
  if (device_.ethernet() && header[20] == std::byte{0x45} &&
      std::memcmp(header + 32, &own, sizeof own) == 0) {
    return true;
  }
  // Otherwise it is a routing header of InfiniBand or an IPv6 header; both have their source at the
  // same offset.
  return std::any_of(groups_.begin(), groups_.end(), [header](const auto& entry) {
    const ibv_gid& gid = entry.second.membership->own_gid();
    return gid.global.interface_id != 0 && std::memcmp(header + 8, gid.raw, sizeof gid.raw) == 0;
  });
}

// Known only for IPv4 addresses: InfiniBand's own GIDs are not reported.
Source UdEndpoint::source() const {
  const std::byte* const routing = receives_.taken();
  if (routing == nullptr) return {};
  size_t at = 32;  // RoCE v2 over IPv4
  if (!device_.ethernet() || routing[20] != std::byte{0x45}) {
    static constexpr std::array<std::byte, 12> kMapped{
        {{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, std::byte{0xff}, std::byte{0xff}}};
    if (!std::equal(kMapped.begin(), kMapped.end(), routing + 8)) return {};
    at = 20;
  }
  in_addr from{};
  std::memcpy(&from, routing + at, sizeof from);
  return Source{{IpAddress::v4(ntohl(from.s_addr)), 0}};
}

std::vector<IpAddress> UdEndpoint::sources_of(const StreamAddress& endpoint) const {
  const auto at = IpAddress::parse(endpoint.host);
  return at ? std::vector{*at} : std::vector<IpAddress>();
}

size_t UdEndpoint::receive(DatagramSink& sink, size_t max_bytes) {
  maintain();
  size_t handed = 0, bytes = 0;
  while (bytes < max_bytes) {
    if (!receives_.any()) {
      reap();
      if (!receives_.any()) break;
    }
    const ReceiveRing::Arrival a = receives_.take();
    if (a.own) {
      ++stats_.own_echo;
    } else if (a.length <= kGrh) {
      ++stats_.truncated;
    } else {
      ++handed;
      ++stats_.datagrams_received;
      bytes += a.length - kGrh;
      sink.on_datagram({receives_.at(a.entry) + kGrh, a.length - kGrh});
    }
    repost(a.entry);
  }
  post_receives();
  return handed;
}

void UdEndpoint::repost(uint32_t entry) {
  receives_.give_back(entry);
  if (receives_.low()) {
    ++stats_.low_water;
    post_receives();
  } else if (receives_.free().size() >= kReceiveChain) {
    post_receives();
  }
}

void UdEndpoint::post_receives() {
  std::array<ibv_recv_wr, kReceiveChain> wr;
  std::array<ibv_sge, kReceiveChain> sge;
  const std::vector<uint32_t>& free = receives_.free();
  while (!broken_ && !free.empty()) {
    const size_t count = std::min(free.size(), kReceiveChain);
    const size_t base = free.size() - count;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t entry = free[base + i];
      sge[i] = {reinterpret_cast<uint64_t>(receives_.at(entry)),
                static_cast<uint32_t>(kGrh + device_.mtu()), receives_.lkey()};
      wr[i] = {kReceiveTag | entry, i + 1 < count ? &wr[i + 1] : nullptr, &sge[i], 1};
    }
    ibv_recv_wr* bad = nullptr;
    const int error = device_.api().post_recv(qp_, wr.data(), &bad);
    const size_t posted =
        error == 0 ? count : (bad != nullptr ? static_cast<size_t>(bad - wr.data()) : 0);
    ++stats_.receive_posts;
    receives_.post(posted, count);
    if (posted < count) {
      ++stats_.receive_errors;
      return;  // the next poll looks again
    }
  }
}

void UdEndpoint::maintain() {
  if (const Nanos now = device_.now(); now > 0) {
    const uint64_t changes = device_.address_changes();
    const bool changed = std::exchange(address_changes_, changes) != changes;
    for (auto& [address, group] : groups_) group.membership->maintain(now, changed);
    mend(now);
  }
  if (queued_ > 0) push();
  if (sources_) sources_->drop_dead();
  if (!receives_.free().empty() && receives_.low()) post_receives();
}

void UdEndpoint::note_broken(const char* why) {
  if (std::exchange(broken_, true)) return;
  problem_ = {};
  log(LogLevel::kWarn, "RDMA device %s: the queue pair for datagrams broke: %s",
      device_.port().text().c_str(), why);
}

void UdEndpoint::mend(Nanos now) {
  if (!broken_ && device_.take_broken(qp_number_)) note_broken("the device reported it");
  if (!broken_ || now < next_mend_ || !device_.usable()) return;
  constexpr Nanos kFirstPause = 100 * kMilli, kLastPause = 10 * kSecond;
  // A failure after a long working period starts with the shortest pause again.
  const bool fresh = pause_ == 0 || now - next_mend_ > kLastPause;
  pause_ = fresh ? kFirstPause : std::min(2 * pause_, kLastPause);
  next_mend_ = now + pause_;
  problem_ = rebuild();
  broken_ = !problem_.ok();
  if (broken_) {
    log(LogLevel::kWarn, "%s; trying again in %s", problem_.message().c_str(),
        seconds_text(pause_).c_str());
    return;
  }
  ++stats_.rebuilds;
  log(LogLevel::kWarn, "RDMA device %s: the queue pair for datagrams was replaced by a new one",
      device_.port().text().c_str());
  for (auto& [address, group] : groups_) group.membership->use_qp(qp_);
  post_receives();
}

// When this returns, the old queue pair is completely gone: datagrams it had received are kept,
// those it had yet to send are lost.
Status UdEndpoint::rebuild() {
  for (auto& [address, group] : groups_) group.membership->leave_qp();
  (void)device_.take_broken(qp_number_);
  if (qp_ != nullptr) (void)device_.api().destroy_qp(qp_);
  qp_ = nullptr;
  // The old queue pair is destroyed, so nothing else completes into this queue.
  ibv_wc wc;
  while (cq_.next(wc)) on_completion(wc);
  sends_.let_go(sends_.posted());
  send_broken_ = false;
  receives_.restart();
  return make_qp();
}

Nanos UdEndpoint::until_timer() const noexcept {
  Nanos due = broken_ && device_.usable() ? next_mend_ : kNever;
  for (const auto& [address, group] : groups_) due = std::min(due, group.membership->due());
  return due == kNever ? kNever : std::max<Nanos>(due - device_.now(), 0);
}

void UdEndpoint::abandon() noexcept {
  abandoned_ = true;
  cq_.abandon();
  sends_.abandon();
  receives_.abandon();
  if (sources_) sources_->abandon();
  for (auto& [address, group] : groups_) group.membership->abandon();
}

}  // namespace mcast::verbs
