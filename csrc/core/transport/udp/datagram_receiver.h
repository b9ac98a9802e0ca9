// Receives datagrams sent to joined multicast addresses: one socket per address, super-packets
// where the kernel offers them (UDP_GRO). Used by the lane's thread only.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/socket_address.h"
#include "base/status.h"
#include "transport/transport.h"
#include "transport/udp/netif.h"
#include "transport/udp/options.h"
#include "transport/udp/socket.h"
#include "transport/udp/source_filter.h"

namespace mcast {

// Maximum number of distinct addresses and ports joined at once: one for each set of members with
// which this process creates groups.
inline constexpr size_t kMaxJoined = 1024;

class DatagramReceiver {
 public:
  // `poller` and `stats` outlive the receiver.
  DatagramReceiver(Epoll& poller, UdpStats& stats) : poller_(poller), stats_(stats) {}
  ~DatagramReceiver();

  // Measures the buffer that a socket is granted; leaves no descriptor open. `stripe`: one
  // interface or several; an address is joined on all of them.
  Status open(const UdpTransportOptions& options, std::span<const Interface> stripe,
              const Interface& loopback);

  // `allow` outlives the receiver.
  void restrict_to(const SourceFilter& allow) { allow_ = &allow; }

  // See Datagram. Both may be called from within a sink.
  Status join(const MulticastAddress& address);
  void leave(const MulticastAddress& address);
  size_t receive(DatagramSink& sink, size_t max_bytes);
  Source source() const { return Source{from_.endpoint()}; }

  // Smallest SO_RCVBUF granted, as the kernel reports it: both payload AND bookkeeping are charged
  // to it.
  size_t granted() const noexcept;
  // Clears errors that would keep the sockets readable.
  void clear_errors();
  // See Transport. The owner of the poller closes the sockets.
  void abandon() noexcept { ready_.abandon(); }

 private:
  struct Socket {
    MulticastAddress address;
    Fd fd;
    int joins = 1;
    size_t granted = 0;
    bool asked = false;  // ready_ watches it too
  };

  Result<Fd> open_joined(const MulticastAddress& address) const;
  size_t configure(int fd) const;  // returns the granted buffer
  MulticastAddress normalized(MulticastAddress address) const noexcept;
  Status watch(Socket& socket);
  // Fills waiting_.
  void find_ready();
  // Reads one super-packet. Returns false if the socket was empty.
  bool read_one(int fd, DatagramSink& sink, size_t& datagrams, size_t& bytes);

  Epoll& poller_;
  UdpStats& stats_;
  UdpTransportOptions options_;
  std::vector<Interface> stripe_;
  Interface loopback_;
  size_t scratch_granted_ = 0;
  std::vector<std::unique_ptr<Socket>> sockets_;
  // The first kRead sockets are read in every call; for the others, one call asks which are
  // readable.
  static constexpr size_t kRead = 2;
  Epoll ready_;                  // unused while there are at most kRead sockets
  size_t asked_ = 0;             // number of sockets that ready_ watches
  std::deque<Socket*> waiting_;  // sockets to be read in this call, the next one first
  uint64_t calls_ = 0;
  Socket* current_ = nullptr;  // the socket being read; null if it was left meanwhile
  std::unique_ptr<std::byte[]> buffer_;
  SocketAddress from_;  // sender of the last super-packet, if options_.monitor
  const SourceFilter* allow_ = nullptr;
};

}  // namespace mcast
