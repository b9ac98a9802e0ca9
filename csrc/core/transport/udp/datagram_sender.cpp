// A batch is a run of datagrams to one address, laid end to end. All have the size of the first;
// one shorter datagram is allowed, as the last, because UDP_SEGMENT can express that only. The
// batch leaves in one sendmsg when it is full (64 segments or 65507 bytes), when it cannot be
// extended, or at flush(). Bytes that the kernel cannot take now stay in the buffer, and EPOLLOUT
// is armed.
//
// If the kernel refuses segmentation (no support, or a device that cannot checksum), the same bytes
// are sent as single datagrams with sendmmsg. If that works, the refusal was about segmentation,
// and super-packets are off from then on. If it fails too, the error was about the network (no
// route, a firewall); the batch is dropped and counted, and the protocol repairs it like loss.
//
// If a single datagram is too long (EMSGSIZE), the interface's MTU has shrunk since it was opened.
// The size is agreed between all ranks, so it cannot change; instead the socket lets the kernel
// fragment, and the receivers' kernels reassemble. This is logged once, counted, and ends when the
// MTU is back.
//
// On a stripe each batch goes to the socket whose send buffer holds least, so interfaces are loaded
// according to their rates, and datagrams sent at about the same time arrive at about the same
// time.
#include "transport/udp/datagram_sender.h"

#include <linux/sockios.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/socket_address.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace mcast {
namespace {

constexpr size_t kSendBuffer = 64 * 1024;
constexpr uint32_t kAdministrativeScope = 239u << 24;
// ff15::/16: transient, site-local (RFC 4291); then "mcast". Ethernet takes the last four bytes.
constexpr std::array<uint8_t, 16> kSiteScope{0xff, 0x15, 0,   0,   0,   0, 0, 0,
                                             'm',  'c',  'a', 's', 't', 0, 0, 0};

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }
bool no_memory(int error) { return error == ENOBUFS || error == ENOMEM; }
bool segmentation_refused(int error) {
  return error == EIO || error == EINVAL || error == EOPNOTSUPP || error == EMSGSIZE ||
         error == ENOPROTOOPT;
}

}  // namespace

Endpoint multicast_endpoint(const MulticastAddress& address, bool v6) {
  const uint32_t group = address.group & 0xffffff;
  if (!v6) return {IpAddress::v4(kAdministrativeScope | group), address.port};
  IpAddress at{kSiteScope};
  for (size_t i = 0; i < 3; i++) at.bytes[13 + i] = static_cast<uint8_t>(group >> (16 - 8 * i));
  return {at, address.port};
}

Status set_multicast_echo(int fd, const IpAddress& from, bool on) {
  return from.is_v6() ? set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, on, "IPV6_MULTICAST_LOOP")
                      : set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, on, "IP_MULTICAST_LOOP");
}

namespace {

// Don't fragment, whatever path MTU the kernel may have cached; or let the kernel fragment.
Status set_whole(int fd, const IpAddress& from, bool whole) {
  return from.is_v6()
             ? set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER,
                          whole ? IPV6_PMTUDISC_PROBE : IPV6_PMTUDISC_DONT, "IPV6_MTU_DISCOVER")
             : set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER,
                          whole ? IP_PMTUDISC_PROBE : IP_PMTUDISC_DONT, "IP_MTU_DISCOVER");
}

// Outgoing multicast: interface, source address, hops.
Status direct_multicast(int fd, const Interface& interface, int hops) {
  if (interface.address.is_v6()) {
    // The kernel would choose another source address than the one that peers know.
    if (bind_to(fd, {interface.address, 0}) != 0) {
      return Status::system(errno, "bind " + interface.address.text());
    }
    const Status status =
        set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, interface.index, "IPV6_MULTICAST_IF");
    if (!status.ok()) return status;
    return set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, hops, "IPV6_MULTICAST_HOPS");
  }
  ip_mreqn request{};
  request.imr_address = in4_of(interface.address);
  request.imr_ifindex = interface.index;
  if (::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof request) != 0) {
    return Status::system(errno, "setsockopt IP_MULTICAST_IF " + interface.name);
  }
  return set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, hops, "IP_MULTICAST_TTL");
}

}  // namespace

DatagramSender::~DatagramSender() {
  for (const Socket& socket : sockets_) {
    if (socket.fd.valid()) poller_.remove(socket.fd.get());
  }
  if (loopback_.fd.valid()) poller_.remove(loopback_.fd.get());
}

Status DatagramSender::open(const UdpTransportOptions& options, std::span<const Interface> stripe,
                            const Interface& loopback) {
  buffer_ = std::make_unique<std::byte[]>(kSendBuffer);
  sndbuf_ = SIZE_MAX;
  for (const Interface& interface : stripe) {
    auto socket = open_on(options, interface);
    if (!socket.ok()) return socket.status();
    sockets_.push_back(std::move(socket.value()));
  }
  if (stripe[0].index != loopback.index) {
    auto socket = open_on(options, loopback);
    if (!socket.ok()) return socket.status();
    loopback_ = std::move(socket.value());
  }
  int probe = 0;
  socklen_t length = sizeof probe;
  stats_.gso = options.gso &&
               ::getsockopt(sockets_[0].fd.get(), IPPROTO_UDP, UDP_SEGMENT, &probe, &length) == 0;
  if (options.gso && !stats_.gso) {
    stats_.gso_fallback_reason = "this kernel has no UDP_SEGMENT";
    ++stats_.gso_fallbacks;
  }
  return {};
}

Result<DatagramSender::Socket> DatagramSender::open_on(const UdpTransportOptions& options,
                                                       const Interface& interface) {
  auto socket = open_socket(SOCK_DGRAM, interface.address);
  if (!socket.ok()) return socket.status();
  const int fd = socket->get();
  Status status = direct_multicast(fd, interface, static_cast<int>(options.ttl));
  // Loop back, as for a group with other processes of this host; the echo is dropped by member id
  // in a layer above.
  if (status.ok()) status = set_multicast_echo(fd, interface.address, true);
  if (status.ok()) status = set_whole(fd, interface.address, true);
  if (status.ok()) status = poller_.add(fd, 0, this);
  if (!status.ok()) return status;
  sndbuf_ = std::min(sndbuf_, set_buffer(fd, false, options.sndbuf));
  Socket opened;
  opened.fd = std::move(socket).value();
  opened.interface = interface.name;
  opened.from = interface.address;
  opened.mtu = interface.mtu;
  opened.needed = static_cast<uint32_t>(std::min<uint64_t>(interface.mtu, options.max_mtu));
  return opened;
}

std::span<DatagramSender::Socket* const> DatagramSender::candidates() {
  order_.clear();
  const size_t count = sockets_.size();
  const bool local = address_.loopback && loopback_.fd.valid();
  if (local || count == 1) {
    order_.push_back(local ? &loopback_ : &sockets_[0]);
    return order_;
  }
  ++turn_;
  std::vector<std::pair<int, Socket*>> loads;  // bytes waiting, socket
  for (size_t i = 0; i < count; ++i) {
    Socket& socket = sockets_[(turn_ + i) % count];
    int waiting = 0;
    (void)::ioctl(socket.fd.get(), SIOCOUTQ, &waiting);
    loads.emplace_back(waiting, &socket);
  }
  std::stable_sort(loads.begin(), loads.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [waiting, socket] : loads) order_.push_back(socket);
  return order_;
}

size_t DatagramSender::segments_limit() const noexcept {
  return std::min(kMaxSegments, kMaxUdpPayload / segment_);
}

Bytes DatagramSender::lend(const MulticastAddress& address, size_t size, Echo echo) {
  if (count_ > 0) {
    const bool extends = !closed_ && address == address_ && echo == echo_ && size <= segment_ &&
                         count_ < segments_limit();
    if (!extends && !push()) return {};
  }
  if (count_ == 0) {
    address_ = address;
    echo_ = echo;
  }
  lent_ = size;
  return {buffer_.get() + used_, size};
}

void DatagramSender::commit(size_t size) {
  size = std::min(size, std::exchange(lent_, 0));
  if (size == 0) return;
  if (count_ == 0) segment_ = size;
  closed_ = size < segment_;
  used_ += size;
  ++count_;
  // A full batch leaves at once. If it cannot, lend() reports that.
  if (closed_ || count_ == segments_limit()) (void)push();
}

bool DatagramSender::flush() { return count_ == 0 || push(); }

void DatagramSender::start_batch() {
  used_ = sent_ = count_ = segment_ = 0;
  closed_ = false;
}

bool DatagramSender::push() {
  out_of_memory_ = false;
  while (sent_ < used_) {
    bool full = false, sent = false;
    for (Socket* const socket : candidates()) {
      const Sent result = send_by(*socket);
      sent = result == Sent::kAll;
      full = full || result == Sent::kWouldBlock;
      if (result == Sent::kWouldBlock) out_of_memory_ = no_memory(error_);
      if (sent) break;
    }
    if (sent) continue;
    if (full) {
      ++stats_.would_block;
      watch_for_room(!out_of_memory_);
      return false;
    }
    ++stats_.send_errors;
    ++stats_.dropped_batches;
    stats_.dropped_datagrams += (used_ - sent_ + segment_ - 1) / segment_;
    break;
  }
  watch_for_room(false);
  start_batch();
  return true;
}

DatagramSender::Sent DatagramSender::send_by(Socket& to) {
  // With the echo off, a host that is a member of the group does not receive its own datagrams.
  if (to.echo != echo_ && set_multicast_echo(to.fd.get(), to.from, echo_ == Echo::kOn).ok()) {
    to.echo = echo_;
  }
  if (to.fragments) look_at_mtu(to);
  const bool single = used_ - sent_ <= segment_;
  // The kernel does not fragment the segments of a super-packet.
  if (!stats_.gso || single || !to.carries(segment_)) return send_one_by_one(to);
  Sent result = send_super_packet(to);
  if (result == Sent::kRefused && segmentation_refused(error_)) {
    const int refusal = error_;
    const size_t before = sent_;
    result = send_one_by_one(to);
    if (sent_ > before && !to.fragments) {
      stats_.gso = false;
      stats_.gso_fallback_reason = std::strerror(refusal);
      ++stats_.gso_fallbacks;
    }
  }
  return result;
}

DatagramSender::Sent DatagramSender::send_super_packet(const Socket& by) {
  SocketAddress to(multicast_endpoint(address_, by.v6()));
  iovec piece{buffer_.get() + sent_, used_ - sent_};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(uint16_t))] = {};
  msghdr message{};
  message.msg_name = to.get();
  message.msg_namelen = to.size();
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = IPPROTO_UDP;
  header->cmsg_type = UDP_SEGMENT;
  header->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto segment = static_cast<uint16_t>(segment_);
  std::memcpy(CMSG_DATA(header), &segment, sizeof segment);
  while (::sendmsg(by.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    error_ = errno;
    return would_block(error_) || no_memory(error_) ? Sent::kWouldBlock : Sent::kRefused;
  }
  ++stats_.send_calls;
  stats_.datagrams_sent += (used_ - sent_ + segment_ - 1) / segment_;
  sent_ = used_;
  return Sent::kAll;
}

// Returns false if a shrunken MTU was not the cause.
bool DatagramSender::allow_fragments(Socket& to) {
  const int fd = to.fd.get();
  if (to.fragments || !set_whole(fd, to.from, false).ok()) {
    return false;
  }
  to.fragments = true;
  to.mtu_now = to.refused_at = interface_mtu(fd, to.interface);
  log(LogLevel::kWarn,
      "interface %s: its MTU is now %u, it was %u; datagrams of the agreed size leave in IP "
      "fragments, which is slower; set it back to %u or more, or restart the job",
      to.interface.c_str(), to.mtu_now, to.mtu, to.needed);
  return true;
}

void DatagramSender::look_at_mtu(Socket& to) {
  const int fd = to.fd.get();
  to.mtu_now = interface_mtu(fd, to.interface);
  if (to.mtu_now < to.needed || to.mtu_now <= to.refused_at || !set_whole(fd, to.from, true).ok()) {
    return;
  }
  to.fragments = false;
  log(LogLevel::kInfo, "interface %s: its MTU is %u again; datagrams leave whole again",
      to.interface.c_str(), to.mtu_now);
}

DatagramSender::Sent DatagramSender::send_one_by_one(Socket& by) {
  SocketAddress to(multicast_endpoint(address_, by.v6()));
  std::array<mmsghdr, kMaxSegments> messages;
  std::array<iovec, kMaxSegments> pieces;
  while (sent_ < used_) {
    unsigned n = 0;
    for (size_t at = sent_; at < used_ && n < kMaxSegments; at += segment_, ++n) {
      pieces[n] = {buffer_.get() + at, std::min(segment_, used_ - at)};
      messages[n] = {};
      messages[n].msg_hdr.msg_name = &to;
      messages[n].msg_hdr.msg_namelen = sizeof to;
      messages[n].msg_hdr.msg_iov = &pieces[n];
      messages[n].msg_hdr.msg_iovlen = 1;
    }
    const int taken = ::sendmmsg(by.fd.get(), messages.data(), n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken < 0) {
      if (errno == EINTR) continue;
      error_ = errno;
      if (error_ == EMSGSIZE && allow_fragments(by)) continue;
      return would_block(error_) || no_memory(error_) ? Sent::kWouldBlock : Sent::kRefused;
    }
    ++stats_.send_calls;
    stats_.datagrams_sent += static_cast<uint64_t>(taken);
    for (int i = 0; i < taken; ++i) fragmented_ += by.carries(pieces[i].iov_len) ? 0 : 1;
    sent_ = std::min(used_, sent_ + static_cast<size_t>(taken) * segment_);
  }
  return Sent::kAll;
}

void DatagramSender::watch_for_room(bool on) {
  if (on == watching_) return;
  watching_ = on;
  // Watch all sockets that may take the batch; `address_` is the batch's until it has left.
  for (const Socket* const socket : candidates()) {
    poller_.modify(socket->fd.get(), on ? EPOLLOUT : 0u, this);
  }
}

void DatagramSender::clear_errors() {
  const auto clear = [this](const Socket& socket) {
    if (socket.fd.valid() && pending_error(socket.fd.get()) != 0) ++stats_.send_errors;
  };
  for (const Socket& socket : sockets_) clear(socket);
  clear(loopback_);
}

}  // namespace mcast
