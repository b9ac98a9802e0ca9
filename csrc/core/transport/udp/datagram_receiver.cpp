// Each joined address has a socket bound to exactly that group and port, with IP_MULTICAST_ALL off
// and its interfaces given by index, so the socket sees neither the groups of other sockets nor
// other interfaces (of IPv6, only not the groups of others: the kernel does not compare interfaces
// there). receive() reads one super-packet per socket in turn until all are empty or the
// caller's limit is reached, and cuts each at the segment size that the kernel reports. Sockets
// beyond the first kRead are only read if epoll reports them readable, so that idle groups cost no
// calls.
#include "transport/udp/datagram_receiver.h"

#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/udp/datagram_sender.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace mcast {
namespace {

constexpr size_t kReceiveBuffer = 64 * 1024 + 64;
constexpr int kIpv6MulticastAll = 29;  // IPV6_MULTICAST_ALL, which older C libraries do not have

// Returns 0, or -1 and errno.
int join_on(int fd, const IpAddress& group, const Interface& interface) {
  if (group.is_v6()) {
    ipv6_mreq request{};
    request.ipv6mr_multiaddr = in6_of(group);
    request.ipv6mr_interface = static_cast<unsigned>(interface.index);
    return ::setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request);
  }
  ip_mreqn request{};
  request.imr_multiaddr = in4_of(group);
  request.imr_address = in4_of(interface.address);
  request.imr_ifindex = interface.index;
  return ::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request);
}

}  // namespace

DatagramReceiver::~DatagramReceiver() {
  for (const auto& socket : sockets_) {
    if (socket->fd.valid()) poller_.remove(socket->fd.get());
  }
}

Status DatagramReceiver::watch(Socket& socket) {
  if (Status status = poller_.add(socket.fd.get(), EPOLLIN, this); !status.ok()) return status;
  if (sockets_.size() - asked_ < kRead) return {};
  Status status = ready_.fd() >= 0 ? Status() : ready_.open();
  if (status.ok()) status = ready_.add(socket.fd.get(), EPOLLIN, &socket);
  socket.asked = status.ok();
  asked_ += socket.asked ? 1 : 0;
  if (!status.ok()) poller_.remove(socket.fd.get());
  return status;
}

Status DatagramReceiver::open(const UdpTransportOptions& options, std::span<const Interface> stripe,
                              const Interface& loopback) {
  options_ = options;
  stripe_.assign(stripe.begin(), stripe.end());
  loopback_ = loopback;
  buffer_ = std::make_unique<std::byte[]>(kReceiveBuffer);
  auto scratch = open_socket(SOCK_DGRAM, stripe_[0].address);
  if (!scratch.ok()) return scratch.status();
  scratch_granted_ = configure(scratch->get());
  int on = 0;
  socklen_t length = sizeof on;
  stats_.gro = options.gro &&
               ::getsockopt(scratch->get(), IPPROTO_UDP, UDP_GRO, &on, &length) == 0 && on != 0;
  return {};
}

size_t DatagramReceiver::configure(int fd) const {
  if (options_.gro) {
    const int on = 1;  // If the option is missing, single datagrams arrive; nothing else changes.
    (void)::setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
  }
  return set_buffer(fd, true, options_.rcvbuf);
}

MulticastAddress DatagramReceiver::normalized(MulticastAddress address) const noexcept {
  address.group &= 0xffffff;
  // On one interface both kinds are the same traffic; two sockets would deliver it twice.
  if (stripe_[0].index == loopback_.index) address.loopback = true;
  return address;
}

Result<Fd> DatagramReceiver::open_joined(const MulticastAddress& address) const {
  const std::span<const Interface> on =
      address.loopback ? std::span(&loopback_, 1) : std::span<const Interface>(stripe_);
  const bool v6 = on[0].address.is_v6();
  auto socket = open_socket(SOCK_DGRAM, on[0].address);
  if (!socket.ok()) return socket;
  const int fd = socket->get();
  // Attach the filter first: no datagram may arrive between bind() and the filter.
  Status status = allow_ == nullptr ? Status() : allow_->attach(fd, v6);
  if (status.ok()) status = set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (status.ok()) {
    status = v6 ? set_option(fd, IPPROTO_IPV6, kIpv6MulticastAll, 0, "IPV6_MULTICAST_ALL")
                : set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL");
  }
  if (!status.ok()) return status;
  const Endpoint bound = multicast_endpoint(address, v6);
  if (bind_to(fd, bound) != 0) return Status::system(errno, "bind " + bound.text());
  for (const Interface& interface : on) {
    if (join_on(fd, bound.address, interface) != 0 &&
        errno != EADDRINUSE) {  // already joined by another address of the stripe
      return Status::system(errno, "join " + bound.text() + " on " + interface.name);
    }
  }
  return socket;
}

Status DatagramReceiver::join(const MulticastAddress& wanted) {
  const MulticastAddress address = normalized(wanted);
  if (address.port == 0) return Status(Code::kInvalidArgument, "multicast port 0");
  for (auto& socket : sockets_) {
    if (socket->address == address) {
      ++socket->joins;
      return {};
    }
  }
  if (sockets_.size() >= kMaxJoined) {
    return Status(Code::kResourceExhausted,
                  "already receiving from " + std::to_string(kMaxJoined) + " multicast addresses");
  }
  auto fd = open_joined(address);
  if (!fd.ok()) return fd.status();
  auto socket = std::make_unique<Socket>();
  socket->address = address;
  socket->granted = configure(fd->get());
  socket->fd = std::move(fd.value());
  if (Status status = watch(*socket); !status.ok()) return status;
  sockets_.push_back(std::move(socket));
  return {};
}

void DatagramReceiver::leave(const MulticastAddress& wanted) {
  const MulticastAddress address = normalized(wanted);
  const auto it = std::find_if(sockets_.begin(), sockets_.end(),
                               [&](const auto& s) { return s->address == address; });
  if (it == sockets_.end() || --(*it)->joins > 0) return;
  poller_.remove((*it)->fd.get());
  if ((*it)->asked) {
    ready_.remove((*it)->fd.get());
    asked_--;
  }
  std::erase(waiting_, it->get());
  if (current_ == it->get()) current_ = nullptr;
  sockets_.erase(it);
}

size_t DatagramReceiver::granted() const noexcept {
  if (sockets_.empty()) return scratch_granted_;
  size_t least = SIZE_MAX;
  for (const auto& socket : sockets_) least = std::min(least, socket->granted);
  return least;
}

// Looks once per call: a datagram that arrives later at a socket that was seen empty waits for the
// next call.
void DatagramReceiver::find_ready() {
  waiting_.clear();
  if (asked_ < sockets_.size()) {
    for (const auto& socket : sockets_)
      if (!socket->asked) waiting_.push_back(socket.get());
  }
  if (asked_ > 0) {
    std::array<epoll_event, 64> events;
    const size_t n = ready_.wait(events, 0);
    for (size_t i = 0; i < n; i++) waiting_.push_back(static_cast<Socket*>(events[i].data.ptr));
  }
  // Rotate the order: the caller's limit may be less than what all sockets hold.
  if (waiting_.empty()) return;
  std::rotate(waiting_.begin(),
              waiting_.begin() + static_cast<ptrdiff_t>(calls_++ % waiting_.size()),
              waiting_.end());
}

size_t DatagramReceiver::receive(DatagramSink& sink, size_t max_bytes) {
  size_t datagrams = 0, bytes = 0;
  find_ready();
  while (!waiting_.empty() && bytes < max_bytes) {
    current_ = waiting_.front();
    waiting_.pop_front();
    const bool more = read_one(current_->fd.get(), sink, datagrams, bytes);
    if (more && current_ != nullptr) waiting_.push_back(current_);
  }
  current_ = nullptr;
  return datagrams;
}

bool DatagramReceiver::read_one(int fd, DatagramSink& sink, size_t& datagrams, size_t& bytes) {
  iovec piece{buffer_.get(), kReceiveBuffer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (options_.monitor) {
    message.msg_name = from_.get();
    message.msg_namelen = from_.size();
  }
  ssize_t got = -1;
  do {
    got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    // Reporting a pending error has cleared it; the socket counts as empty until the next call.
    if (errno != EAGAIN && errno != EWOULDBLOCK) ++stats_.receive_errors;
    ++stats_.empty_reads;
    return false;
  }
  ++stats_.receive_calls;
  const auto length = static_cast<size_t>(got);
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    ++stats_.truncated;
    bytes += length;
    return true;
  }
  size_t segment = length;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, CMSG_DATA(c), sizeof size);
      if (size > 0) segment = static_cast<size_t>(size);
    }
  }
  bytes += std::max<size_t>(length, 1);  // empty datagrams count towards the limit too
  size_t at = 0;
  do {
    const size_t size = std::min(segment, length - at);
    ++datagrams;
    ++stats_.datagrams_received;
    sink.on_datagram({buffer_.get() + at, size});
    at += size;
  } while (at < length);
  return true;
}

void DatagramReceiver::clear_errors() {
  for (auto& socket : sockets_) {
    if (pending_error(socket->fd.get()) != 0) ++stats_.receive_errors;
  }
}

}  // namespace mcast
