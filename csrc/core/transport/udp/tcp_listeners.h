// The listening sockets of a TcpStream, one per interface. They are paused while there is no
// descriptor for another connection.
#pragma once

#include <span>
#include <vector>

#include "base/net_address.h"
#include "transport/transport.h"
#include "transport/udp/netif.h"
#include "transport/udp/socket.h"

namespace mcast {

class TcpListeners {
 public:
  struct Listener {
    Fd fd;
    Endpoint address;
  };

  explicit TcpListeners(Epoll& epoll) : epoll_(epoll) {}  // outlives this
  // Opens one socket per interface of the stripe, then one on loopback unless the first is on
  // loopback already. Their events are tagged with the listener. kSystem if an address is gone, or
  // all ports of the range are taken.
  Status open(std::span<const Interface> stripe, const Interface& loopback, PortRange ports);

  // The address to publish for peers, with this uid.
  StreamAddress address(uint64_t uid, bool loopback) const;
  // The address to which peers of this interface of the stripe connect; `loopback`: those on
  // loopback.
  const Endpoint& at(size_t stripe, bool loopback) const;
  // Returns the listener that an event belongs to, or null.
  Listener* find(const void* tag);

  // Stops events until `resume_at`, or later; see look().
  void pause(Nanos resume_at);
  bool paused() const noexcept { return paused_; }
  Nanos resume_at() const noexcept { return resume_at_; }
  // Ends a pause whose time has passed.
  void look(Nanos now);

 private:
  Status listen_on(const Interface& interface, PortRange ports, Listener& listener);
  void watch_all(uint32_t events);

  Epoll& epoll_;
  std::vector<Listener> listeners_;
  size_t stripe_ = 0;  // number of listeners that belong to the stripe
  bool paused_ = false;
  Nanos resume_at_ = 0;
};

}  // namespace mcast
