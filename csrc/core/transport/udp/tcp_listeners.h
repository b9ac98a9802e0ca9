// Where a TcpStream listens, and for whom: a socket per interface, which rest while there is no
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
    sockaddr_in address{};
  };

  explicit TcpListeners(Epoll& epoll) : epoll_(epoll) {}  // outlives this
  // One per interface of the stripe, then one on loopback unless the first is that. Their events
  // are tagged with the listener. kSystem if an address is gone, or all ports of the range are
  // taken.
  Status open(std::span<const Interface> stripe, const Interface& loopback, PortRange ports);

  // What peers must be given, with this uid.
  StreamAddress address(uint64_t uid, bool loopback) const;
  // The address that a peer on loopback, or another one, is told to connect to.
  const sockaddr_in& first(bool loopback) const;
  // Whose event it is; null: none's.
  Listener* find(const void* tag);

  // No more events until `resume_at`, or later; see look().
  void pause(Nanos resume_at);
  bool paused() const noexcept { return paused_; }
  Nanos resume_at() const noexcept { return resume_at_; }
  // Ends a pause whose time has come.
  void look(Nanos now);

 private:
  Status listen_on(const Interface& interface, PortRange ports, Listener& listener);
  void watch_all(uint32_t events);

  Epoll& epoll_;
  std::vector<Listener> listeners_;
  size_t stripe_ = 0;  // of them, the stripe's
  bool paused_ = false;
  Nanos resume_at_ = 0;
};

}  // namespace mcast
