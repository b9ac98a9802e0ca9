// Sends batches of equally sized datagrams to multicast addresses: one contiguous staging buffer,
// one sendmsg with UDP_SEGMENT per batch. Used by the lane's thread only.
#pragma once

#include <memory>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/udp/netif.h"
#include "transport/udp/options.h"
#include "transport/udp/socket.h"

namespace mcast {

// Largest UDP payload over IPv4, and most segments that every kernel with UDP_SEGMENT takes.
inline constexpr size_t kMaxUdpPayload = 65507;
inline constexpr size_t kMaxSegments = 64;
// IPv4 + UDP header.
inline constexpr size_t kUdpOverhead = 28;

// Host address and port of a group.
sockaddr_in multicast_sockaddr(const MulticastAddress& address);

class DatagramSender {
 public:
  // `poller` and `stats` outlive the sender.
  DatagramSender(Epoll& poller, UdpStats& stats) : poller_(poller), stats_(stats) {}
  ~DatagramSender();

  Status open(const UdpTransportOptions& options, const Interface& chosen,
              const Interface& loopback);

  // See Datagram. `size` has been checked against max_datagram().
  Bytes lend(const MulticastAddress& address, size_t size);
  void commit(size_t size);
  bool flush();

  size_t sndbuf() const noexcept { return sndbuf_; }  // granted, the kernel's figure
  // Something is queued that no event will announce room for (the kernel was out of memory): try
  // again after a short while.
  bool needs_retry() const noexcept { return out_of_memory_; }
  void clear_errors();
  void abandon() noexcept;

 private:
  enum class Sent { kAll, kWouldBlock, kRefused };

  size_t segments_limit() const noexcept;
  bool push();
  Sent send_super_packet();
  Sent send_one_by_one();
  void watch_for_room(bool on);
  void start_batch();
  int socket_of(bool loopback) const noexcept;

  Epoll& poller_;
  UdpStats& stats_;
  Fd sockets_[2];  // [0] the chosen interface, [1] loopback (unused if the chosen one is loopback)
  size_t sndbuf_ = 0;

  std::unique_ptr<std::byte[]> buffer_;
  MulticastAddress address_;
  size_t segment_ = 0;   // size of all datagrams of the batch but the last
  size_t used_ = 0;      // bytes committed
  size_t sent_ = 0;      // bytes of those already taken by the kernel, a multiple of segment_
  size_t count_ = 0;     // datagrams committed
  size_t lent_ = 0;      // bytes lent behind `used_`
  bool closed_ = false;  // a short datagram ended the batch

  int watched_ = -1;  // socket whose EPOLLOUT is armed
  bool out_of_memory_ = false;
  int error_ = 0;  // errno of the last refusal
};

}  // namespace mcast
