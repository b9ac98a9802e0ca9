// Receives what is sent to joined multicast addresses: one socket per address, super-packets where
// the kernel offers them (UDP_GRO). Used by the lane's thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/udp/netif.h"
#include "transport/udp/options.h"
#include "transport/udp/socket.h"
#include "transport/udp/source_filter.h"

namespace mcast {

// Distinct addresses joined at once; the engine shares addresses beyond it.
inline constexpr size_t kMaxJoined = 16;

class DatagramReceiver {
 public:
  // `poller` and `stats` outlive the receiver.
  DatagramReceiver(Epoll& poller, UdpStats& stats) : poller_(poller), stats_(stats) {}
  ~DatagramReceiver();

  // Measures what a socket is granted; opens nothing that stays.
  // `stripe`: one interface or several; an address is joined on all of them.
  Status open(const UdpTransportOptions& options, std::span<const Interface> stripe,
              const Interface& loopback);

  // `allow` outlives the receiver.
  void restrict_to(const SourceFilter& allow) { allow_ = &allow; }

  // See Datagram. Both may be called from within a sink.
  Status join(const MulticastAddress& address);
  void leave(const MulticastAddress& address);
  size_t receive(DatagramSink& sink, size_t max_bytes);
  Source source() const noexcept { return {ntohl(from_.sin_addr.s_addr), ntohs(from_.sin_port)}; }

  // Smallest SO_RCVBUF granted, the kernel's figure: what payload AND bookkeeping are charged to.
  size_t granted() const noexcept;
  // Clears errors that would keep the sockets readable.
  void clear_errors();

 private:
  struct Socket {
    MulticastAddress address;
    Fd fd;
    int joins = 1;
    size_t granted = 0;
    uint64_t dry_in = 0;  // the receive() call that saw it empty
  };

  Result<Fd> open_joined(const MulticastAddress& address) const;
  size_t configure(int fd) const;  // returns the granted buffer
  MulticastAddress normalized(MulticastAddress address) const noexcept;
  // Reads one super-packet. False: empty.
  bool read_one(int fd, DatagramSink& sink, size_t& datagrams, size_t& bytes);

  Epoll& poller_;
  UdpStats& stats_;
  UdpTransportOptions options_;
  std::vector<Interface> stripe_;
  Interface loopback_;
  size_t scratch_granted_ = 0;
  std::vector<std::unique_ptr<Socket>> sockets_;
  size_t next_ = 0;    // socket whose turn it is
  uint64_t call_ = 0;  // number of the running receive()
  std::unique_ptr<std::byte[]> buffer_;
  sockaddr_in from_{};  // of the last super-packet, if options_.monitor
  const SourceFilter* allow_ = nullptr;
};

}  // namespace mcast
