// With a range of ports a listener tries them in turn, from a random start, so that the ranks of a
// host seldom try the same port. A taken port shows in bind(), or in listen() if both processes
// have bound it; a bound socket cannot be bound again, so each port gets a new one.
//
// A pause removes the sockets from epoll only; connections that arrive meanwhile wait in the
// kernel's backlog.
#include "transport/udp/tcp_listeners.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/random.h"
#include "base/socket_address.h"
#include "transport/udp/stream_wire.h"

namespace mcast {
namespace {

constexpr int kBacklog = 1024;

// Port 0: any. Returns 0, or the errno.
int listen_on_port(int fd, Endpoint& at) {
  if (bind_to(fd, at) != 0 || ::listen(fd, kBacklog) != 0) return errno;
  at = local_endpoint(fd);
  return at.address.known() ? 0 : errno;
}

Result<Fd> listen_in(const IpAddress& address, PortRange ports, Endpoint& at) {
  const size_t count = ports.any() ? 1 : ports.size();
  const size_t start = ports.any() ? 0 : secure_random64() % count;
  int error = 0;
  for (size_t i = 0; i < count; ++i) {
    auto fd = open_socket(SOCK_STREAM, address);
    if (!fd.ok()) return fd.status();
    at = {address, static_cast<uint16_t>(ports.first + (start + i) % count)};
    if (!ports.any()) {
      // Connections of the previous job in TIME_WAIT must not block the ports of the next job.
      const Status status = set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
      if (!status.ok()) return status;
    }
    error = listen_on_port(fd->get(), at);
    if (error == 0) return fd;
    if (error != EADDRINUSE || ports.any()) break;
  }
  const bool all_taken = error == EADDRINUSE && !ports.any();
  return Status::system(
      error, all_taken ? "all " + std::to_string(count) + " ports of port_range" : "listen");
}

}  // namespace

Status TcpListeners::open(std::span<const Interface> stripe, const Interface& loopback,
                          PortRange ports) {
  const bool apart = stripe[0].index != loopback.index;
  stripe_ = stripe.size();
  // Events point at the listeners, so the vector must not reallocate.
  listeners_.resize(stripe_ + (apart ? 1 : 0));
  Status status;
  for (size_t i = 0; i < listeners_.size() && status.ok(); ++i) {
    status = listen_on(i < stripe_ ? stripe[i] : loopback, ports, listeners_[i]);
  }
  return status;
}

Status TcpListeners::listen_on(const Interface& interface, PortRange ports, Listener& listener) {
  auto fd = listen_in(interface.address, ports, listener.address);
  if (!fd.ok()) {
    return fd.status().with_context("listen on " + interface.name + " " + interface.address.text());
  }
  if (Status status = epoll_.add(fd->get(), EPOLLIN, &listener); !status.ok()) return status;
  listener.fd = std::move(fd.value());
  return {};
}

StreamAddress TcpListeners::address(uint64_t uid, bool loopback) const {
  const bool apart = listeners_.size() > stripe_;
  if (loopback && apart) return stripe_address(uid, {&at(0, true), 1});
  std::vector<Endpoint> endpoints;
  for (size_t i = 0; i < stripe_; ++i) endpoints.push_back(listeners_[i].address);
  return stripe_address(uid, endpoints);
}

const Endpoint& TcpListeners::at(size_t stripe, bool loopback) const {
  const bool apart = listeners_.size() > stripe_;
  return listeners_[loopback && apart ? stripe_ : stripe].address;
}

TcpListeners::Listener* TcpListeners::find(const void* tag) {
  const auto it = std::find_if(listeners_.begin(), listeners_.end(),
                               [tag](const Listener& l) { return tag == &l; });
  return it == listeners_.end() ? nullptr : &*it;
}

void TcpListeners::watch_all(uint32_t events) {
  for (Listener& l : listeners_) {
    if (l.fd.valid()) epoll_.modify(l.fd.get(), events, &l);
  }
}

void TcpListeners::pause(Nanos resume_at) {
  paused_ = true;
  resume_at_ = resume_at;
  watch_all(0);
}

void TcpListeners::look(Nanos now) {
  if (!paused_ || now < resume_at_) return;
  paused_ = false;
  watch_all(EPOLLIN);
}

}  // namespace mcast
