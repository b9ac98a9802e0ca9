// The transport for ordinary sockets: datagrams by UDP multicast, streams by TCP, one epoll
// instance for both. One object = the endpoints of one lane; see transport.h for threads and
// errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/udp/netif.h"
#include "transport/udp/options.h"
#include "transport/udp/tcp_stream.h"
#include "transport/udp/udp_datagram.h"

namespace mcast {

class UdpTransport final : public Transport {
 public:
  UdpTransport() : datagram_(poller_, datagram_stats_), stream_(stream_stats_) {}
  ~UdpTransport() override;
  UdpTransport(const UdpTransport&) = delete;
  UdpTransport& operator=(const UdpTransport&) = delete;

  Status open(const UdpTransportOptions& options);
  // Opens on these interfaces instead of those that options.interface names. `loopback` may have an
  // address of the other IP version.
  Status open_on(const UdpTransportOptions& options, std::vector<Interface> stripe,
                 const Interface& own_loopback);

  const char* name() const override { return "udp"; }
  Datagram& datagram() override { return datagram_; }
  Stream& stream() override { return stream_; }
  void wait(Nanos timeout) override;
  void wake() noexcept override;
  bool has_its_address() const override;
  void abandon_after_fork() noexcept override;
  std::string describe() const override;

  const UdpStats& datagram_stats() const noexcept { return datagram_stats_; }
  const TcpStats& stream_stats() const noexcept { return stream_stats_; }
  // The interface, or those of the stripe.
  const std::vector<Interface>& interfaces() const noexcept { return interfaces_; }

 private:
  std::string names() const;
  Status restrict_sources();

  UdpTransportOptions options_;
  UdpStats datagram_stats_;
  TcpStats stream_stats_;
  std::vector<Interface> interfaces_;
  SourceFilter allow_;
  Epoll poller_;
  Fd wake_fd_;
  UdpDatagram datagram_;
  TcpStream stream_;
};

// kUnavailable / kSystem with the reason if sockets cannot be used as requested.
Result<std::unique_ptr<Transport>> make_udp_transport(const UdpTransportOptions& options);
// The same check without keeping anything open: also joins a group on the chosen interface.
Status udp_viable(const UdpTransportOptions& options);

}  // namespace mcast
