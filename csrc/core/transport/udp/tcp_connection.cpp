// Reads go to a scratch buffer shared by all connections; only the partial frame at its end is kept
// here and put in front of the next read. So frames are handed out where they arrived, and an idle
// connection costs no buffer.
#include "transport/udp/tcp_connection.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

namespace mcast {
namespace {

// struct tcp_info of <linux/tcp.h>, which cannot be included beside <netinet/tcp.h>, up to the
// times.
struct KernelTcpInfo {
  tcp_info head;  // as libc declares it: up to total_retrans
  uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
  uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
  uint64_t delivery_rate, busy_time, rwnd_limited;
};
static_assert(offsetof(KernelTcpInfo, rwnd_limited) == 176);  // the kernel's ABI

// The kernel takes no more than this beyond what it may send immediately. So the choice of the next
// frame is made here, as late as possible, and not by the contents of socket buffers.
constexpr int kMostUnsent = 64 << 10;

}  // namespace

void TcpConnection::configure(int fd, const IpAddress& peer, const UdpTransportOptions& options,
                              size_t stripes) {
  const auto set = [fd](int level, int name, int value) {
    (void)::setsockopt(fd, level, name, &value, sizeof value);
  };
  const auto limit_ms =
      static_cast<int>(std::clamp<Nanos>(options.liveness_limit / kMilli, 100, INT_MAX));
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A switch may carry less than the interfaces of its hosts and silently drop longer packets. If
  // set before the connection is made, the limit holds for both directions.
  if (options.max_mtu < UdpTransportOptions().max_mtu) {
    // IP and TCP headers; TCP options are taken out of the segment.
    const auto headers = static_cast<int>(peer.header_bytes()) + 20;
    set(IPPROTO_TCP, TCP_MAXSEG, static_cast<int>(options.max_mtu) - headers);
  }
  // Frames of a stripe are distributed by the bytes that its connections hold: all must have
  // enough.
  if (stripes == 1) set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMostUnsent);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, limit_ms);
  // Probes an idle peer often enough to find it dead within about the limit.
  const int seconds = std::clamp(limit_ms / 1000 / 4, 1, 32767);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Status TcpConnection::watch(uint32_t events) {
  Status status = poller_.add(fd_.get(), events, this);
  if (status.ok()) watched_ = events;
  return status;
}

void TcpConnection::want(uint32_t events) {
  if (!watched_ || events == *watched_) return;
  watched_ = events;
  poller_.modify(fd_.get(), events, this);
}

void TcpConnection::close() {
  state = State::kDead;
  if (!fd_.valid()) return;
  if (watched_) poller_.remove(fd_.get());
  watched_.reset();
  // A forked child may still hold a copy of the descriptor; then close() alone would not notify the
  // peer.
  (void)::shutdown(fd_.get(), SHUT_RDWR);
  fd_.reset();
}

TcpConnection::Io TcpConnection::read_exactly(size_t size) {
  while (partial.size() < size) {
    std::byte bytes[kHelloSize];
    const size_t missing = std::min(size - partial.size(), sizeof bytes);
    const ssize_t got = ::recv(fd_.get(), bytes, missing, MSG_DONTWAIT);
    if (got == 0) return Io::kEof;
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kAgain;
      error = errno;
      return Io::kError;
    }
    partial.insert(partial.end(), bytes, bytes + got);
  }
  return Io::kOk;
}

bool TcpConnection::write_message(ConstBytes bytes) {
  const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return write({&vector, 1}) == bytes.size();
}

size_t TcpConnection::write(std::span<const iovec> vectors) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(vectors.data());
  message.msg_iovlen = vectors.size();
  while (true) {
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS && errno != ENOMEM) {
      error = errno;
      write_broken = true;
      // The read side reports how the connection ends, so it must end now. Bytes that have already
      // arrived are read before that.
      (void)::shutdown(fd_.get(), SHUT_RDWR);
    }
    return 0;
  }
}

bool TcpConnection::write_sealed(SendQueue& queue) {
  while (!write_broken) {
    if (guard->waiting().empty() && !guard->seal_from(queue, numbered)) return false;
    const ConstBytes bytes = guard->waiting();
    if (bytes.empty()) return true;
    const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const size_t taken = write({&vector, 1});
    guard->written(taken);
    if (taken < bytes.size()) break;
  }
  if (write_broken) guard->written(guard->waiting().size());
  return true;
}

ConstBytes TcpConnection::fill(Bytes scratch, Io& io) {
  const size_t kept = partial.size();
  if (kept > 0) std::memcpy(scratch.data(), partial.data(), kept);
  ssize_t got = -1;
  do {
    got = ::recv(fd_.get(), scratch.data() + kept, scratch.size() - kept, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return {scratch.data(), kept + static_cast<size_t>(got)};
  if (got == 0) {
    io = Io::kEof;
  } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
    io = Io::kAgain;
  } else {
    io = Io::kError;
    error = errno;
  }
  return {};
}

size_t TcpConnection::unacknowledged() const {
  int bytes = 0;
  if (::ioctl(fd_.get(), SIOCOUTQ, &bytes) != 0 || bytes < 0) return 0;
  return static_cast<size_t>(bytes);
}

double TcpConnection::rate() {
  KernelTcpInfo info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
      length >= offsetof(KernelTcpInfo, rwnd_limited) + sizeof info.rwnd_limited) {
    rate_.update(info.bytes_acked, info.busy_time, info.rwnd_limited);
  }
  return rate_.value();
}

}  // namespace mcast
