// Sends batches of equally sized datagrams to multicast addresses: one contiguous staging buffer,
// one sendmsg with UDP_SEGMENT per batch, through the interface of the stripe that has least to
// send. Used by the lane's thread only.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/udp/netif.h"
#include "transport/udp/options.h"
#include "transport/udp/socket.h"

namespace mcast {

// Largest UDP payload over IPv4 (that over IPv6 is 20 bytes longer), and the largest number of
// segments that every kernel with UDP_SEGMENT takes.
inline constexpr size_t kMaxUdpPayload = 65507;
inline constexpr size_t kMaxSegments = 64;
// Bytes of IP and UDP header of datagrams that leave from this address.
inline size_t udp_overhead(const IpAddress& from) { return from.header_bytes() + 8; }

// Host address and port of a group, for sockets of IPv6 or of IPv4.
Endpoint multicast_endpoint(const MulticastAddress& address, bool v6);
// Whether a multicast socket delivers what this host sends to itself.
Status set_multicast_echo(int fd, const IpAddress& from, bool on);

class DatagramSender {
 public:
  // `poller` and `stats` outlive the sender.
  DatagramSender(Epoll& poller, UdpStats& stats) : poller_(poller), stats_(stats) {}
  ~DatagramSender();

  // `stripe`: one interface or several.
  Status open(const UdpTransportOptions& options, std::span<const Interface> stripe,
              const Interface& loopback);

  // See Datagram. `size` has been checked against max_datagram().
  Bytes lend(const MulticastAddress& address, size_t size, Echo echo);
  void commit(size_t size);
  bool flush();

  // See Datagram.
  uint64_t fragmented() const noexcept { return fragmented_; }
  size_t sndbuf() const noexcept { return sndbuf_; }  // as granted, in the kernel's figure
  // Returns true if something is queued for which no event will announce room (the kernel was out
  // of memory): try again after a short while.
  bool needs_retry() const noexcept { return out_of_memory_; }
  void clear_errors();

 private:
  enum class Sent { kAll, kWouldBlock, kRefused };
  struct Socket {
    Fd fd;
    Echo echo = Echo::kOn;  // current setting of IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP
    std::string interface;
    IpAddress from{};     // the datagrams' source
    uint32_t mtu = 0;     // of the interface, when it was opened
    uint32_t needed = 0;  // the part of it that the largest datagram needs
    // The interface has refused a datagram of the size agreed when it was opened: datagrams that no
    // longer fit leave in fragments.
    bool fragments = false;
    uint32_t refused_at = 0, mtu_now = 0;  // MTU at the refusal, and when it was last read
    bool carries(size_t datagram) const {
      return !fragments || datagram + udp_overhead(from) <= mtu_now;
    }
    bool v6() const { return from.is_v6(); }
  };

  size_t segments_limit() const noexcept;
  Result<Socket> open_on(const UdpTransportOptions& options, const Interface& interface);
  bool push();
  Sent send_by(Socket& socket);
  Sent send_super_packet(const Socket& by);
  Sent send_one_by_one(Socket& to);
  bool allow_fragments(Socket& to);
  void look_at_mtu(Socket& to);
  // Sockets that reach the batch's address, in the order in which to try them.
  std::span<Socket* const> candidates();
  void watch_for_room(bool on);
  void start_batch();

  Epoll& poller_;
  UdpStats& stats_;
  std::vector<Socket> sockets_;  // by interface of the stripe
  Socket loopback_;              // unused if the stripe is loopback
  std::vector<Socket*> order_;   // scratch of candidates()
  size_t turn_ = 0;              // which socket is tried first among equals
  size_t sndbuf_ = 0;
  uint64_t fragmented_ = 0;

  std::unique_ptr<std::byte[]> buffer_;
  MulticastAddress address_;
  Echo echo_ = Echo::kOn;
  size_t segment_ = 0;   // size of all datagrams of the batch but the last
  size_t used_ = 0;      // bytes committed
  size_t sent_ = 0;      // bytes of `used_` already taken by the kernel, a multiple of segment_
  size_t count_ = 0;     // datagrams committed
  size_t lent_ = 0;      // bytes lent behind `used_`
  bool closed_ = false;  // a short datagram ended the batch

  bool watching_ = false;  // EPOLLOUT is armed
  bool out_of_memory_ = false;
  int error_ = 0;  // errno of the last refusal
};

}  // namespace mcast
