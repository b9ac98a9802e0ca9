// Each helper is one system call plus its error text. Epoll::wait() prefers epoll_pwait2
// (nanosecond timeouts); on a kernel without it the timeout is rounded UP to milliseconds, so that
// a caller with a timer never spins through the last fraction of it.
#include "transport/udp/socket.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "base/socket_address.h"

namespace mcast {

Result<Fd> open_socket(int type, const IpAddress& address) {
  const int family = family_of(address);
  Fd fd(::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::system(errno, family == AF_INET6 ? "socket of IPv6" : "socket");
  if (family == AF_INET6) {
    const Status only = set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY");
    if (!only.ok()) return only;
  }
  return fd;
}

Status set_option(int fd, int level, int name, int value, const char* what) {
  if (::setsockopt(fd, level, name, &value, sizeof value) == 0) return {};
  return Status::system(errno, std::string("setsockopt ") + what);
}

void keep_alive(int fd) {
  (void)set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  (void)set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30, "TCP_KEEPIDLE");
  (void)set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10, "TCP_KEEPINTVL");
  (void)set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT");
  (void)set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
}

size_t set_buffer(int fd, bool receive, uint64_t bytes) {
  // The kernel doubles the requested size, which is an int.
  const int ask = static_cast<int>(std::min<uint64_t>(bytes, INT_MAX / 2));
  const int force = receive ? SO_RCVBUFFORCE : SO_SNDBUFFORCE;
  const int plain = receive ? SO_RCVBUF : SO_SNDBUF;
  if (::setsockopt(fd, SOL_SOCKET, force, &ask, sizeof ask) != 0) {
    (void)::setsockopt(fd, SOL_SOCKET, plain, &ask, sizeof ask);  // the size is read back below
  }
  int granted = 0;
  socklen_t length = sizeof granted;
  if (::getsockopt(fd, SOL_SOCKET, plain, &granted, &length) != 0 || granted < 0) return 0;
  return static_cast<size_t>(granted);
}

int pending_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

namespace {

// A socket that takes connections over both versions of IP.
Result<Fd> open_for_both() {
  Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::system(errno, "socket of IPv6");
  const Status both = set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY");
  if (!both.ok()) return both;
  return fd;
}

// 0, or the error's number.
int listen_with(int fd, const Endpoint& at, int backlog) {
  const int reuse = 1;
  const bool done = ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) == 0 &&
                    bind_to(fd, at) == 0 && ::listen(fd, backlog) == 0;
  return done ? 0 : errno;
}

}  // namespace

Result<Fd> listen_at(Endpoint& at, int backlog) {
  const bool all = !at.address.known();
  Result<Fd> fd = all ? open_for_both() : open_socket(SOCK_STREAM, at.address);
  int error = fd.ok() ? listen_with(fd->get(), at, backlog) : EAFNOSUPPORT;
  if (all && error != 0 && error != EADDRINUSE && error != EACCES) {  // a host without IPv6
    const Endpoint any{IpAddress::v4(INADDR_ANY), at.port};
    fd = open_socket(SOCK_STREAM, any.address);
    error = fd.ok() ? listen_with(fd->get(), any, backlog) : EAFNOSUPPORT;
  }
  if (!fd.ok()) return fd.status();
  if (error != 0) {
    const std::string where = all ? "all addresses, port " + std::to_string(at.port) : at.text();
    return Status::system(error, "listen at " + where);
  }
  at.port = local_endpoint(fd->get()).port;
  return fd;
}

Status Epoll::open() {
  fd_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd_.valid()) return Status::system(errno, "epoll_create1");
  return {};
}

Status Epoll::add(int fd, uint32_t events, void* tag) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status::system(errno, "epoll_ctl");
  }
  replace(-1, fd);
  return {};
}

void Epoll::replace(int from, int to) {
  for (Block* block = &watched_;;) {
    for (auto& place : block->places) {
      if (place.load(std::memory_order_relaxed) != from) continue;
      return place.store(to, std::memory_order_relaxed);
    }
    Block* next = block->next.load(std::memory_order_relaxed);
    if (next == nullptr) {
      if (from != -1) return;  // it is not watched
      next = new Block;
      block->next.store(next, std::memory_order_release);
    }
    block = next;
  }
}

Epoll::~Epoll() {
  for (Block* block = watched_.next.load(); block != nullptr;) {
    delete std::exchange(block, block->next.load());
  }
}

void Epoll::abandon_watched() noexcept {
  for (Block* block = &watched_; block != nullptr; block = block->next.load()) {
    for (auto& place : block->places) {
      if (const int fd = place.exchange(-1); fd >= 0) ::close(fd);
    }
  }
  fd_.reset();
}

void Epoll::modify(int fd, uint32_t events, void* tag) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  (void)::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event);  // cannot fail for a registered fd
}

void Epoll::remove(int fd) {
  replace(fd, -1);
  (void)::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

size_t Epoll::wait(std::span<epoll_event> events, Nanos timeout) {
  const int capacity = static_cast<int>(events.size());
  timeout = std::max<Nanos>(timeout, 0);
  int n = -1;
  if (timeout == 0 || timeout == kNever) {
    n = ::epoll_wait(fd_.get(), events.data(), capacity, timeout == 0 ? 0 : -1);
  } else {
    const timespec spec{static_cast<time_t>(timeout / kSecond),
                        static_cast<long>(timeout % kSecond)};  // NOLINT: the kernel's type
    // The call's number, the same on every architecture: C libraries before 2.35 have no wrapper.
    constexpr long kEpollPwait2 = 441;
    n = static_cast<int>(
        ::syscall(kEpollPwait2, fd_.get(), events.data(), capacity, &spec, nullptr, size_t{0}));
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) {  // old kernel, or a seccomp filter
      const Nanos ms = std::min<Nanos>((timeout + kMilli - 1) / kMilli, INT_MAX);
      n = ::epoll_wait(fd_.get(), events.data(), capacity, static_cast<int>(ms));
    }
  }
  return n > 0 ? static_cast<size_t>(n) : 0;
}

}  // namespace mcast
