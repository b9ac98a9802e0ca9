// A pause takes the sockets out of epoll's sight, not out of the kernel's: connections that come
// meanwhile wait in the backlog.
#include "transport/udp/tcp_listeners.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transport/udp/stream_wire.h"

namespace mcast {
namespace {

constexpr int kBacklog = 1024;

}  // namespace

Status TcpListeners::open(std::span<const Interface> stripe, const Interface& loopback) {
  const bool apart = stripe[0].index != loopback.index;
  stripe_ = stripe.size();
  // Events point at the listeners: they stay where they are.
  listeners_.resize(stripe_ + (apart ? 1 : 0));
  Status status;
  for (size_t i = 0; i < listeners_.size() && status.ok(); ++i) {
    status = listen_on(i < stripe_ ? stripe[i] : loopback, listeners_[i]);
  }
  return status;
}

Status TcpListeners::listen_on(const Interface& interface, Listener& listener) {
  auto fd = open_socket(SOCK_STREAM);
  if (!fd.ok()) return fd.status();
  listener.address = ipv4_address(interface.address, 0);
  auto* const address = reinterpret_cast<sockaddr*>(&listener.address);
  socklen_t length = sizeof listener.address;
  if (::bind(fd->get(), address, length) != 0 || ::listen(fd->get(), kBacklog) != 0 ||
      ::getsockname(fd->get(), address, &length) != 0) {
    return Status::system(errno, "listen on " + interface.name + " " + to_text(interface.address));
  }
  if (Status status = epoll_.add(fd->get(), EPOLLIN, &listener); !status.ok()) return status;
  listener.fd = std::move(fd.value());
  return {};
}

StreamAddress TcpListeners::address(uint64_t uid, bool loopback) const {
  const bool apart = listeners_.size() > stripe_;
  if (loopback && apart) return stripe_address(uid, {&first(true), 1});
  std::vector<sockaddr_in> endpoints;
  for (size_t i = 0; i < stripe_; ++i) endpoints.push_back(listeners_[i].address);
  return stripe_address(uid, endpoints);
}

const sockaddr_in& TcpListeners::first(bool loopback) const {
  const bool apart = listeners_.size() > stripe_;
  return listeners_[loopback && apart ? stripe_ : 0].address;
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
