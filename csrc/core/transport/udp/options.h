// Options and statistics of the UDP/TCP transport.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "base/config.h"
#include "base/net_address.h"
#include "base/types.h"
#include "crypto/handshake.h"
#include "transport/refused_connections.h"

namespace mcast {

struct UdpTransportOptions {
  // Minimum number of unsent bytes that a socket takes, whatever the link's rate: one super-packet.
  static constexpr uint64_t kLeastPaced = 64 << 10;

  std::string interface;                // NCCL grammar, see netif.h; empty: automatic
  bool ipv6 = false;                    // see Config
  size_t lane = 0;                      // selects the interface, see choose_interfaces()
  uint64_t max_mtu = 9000;              // bytes of IP packet
  uint64_t rcvbuf = 32 << 20;           // bytes requested, per receive socket
  uint64_t sndbuf = 1 << 20;            // bytes requested, per transmit socket
  uint64_t ttl = 1;                     // hops of multicast datagrams
  PortRange ports;                      // for the listeners of stream endpoints
  Nanos liveness_limit = 20 * kSecond;  // unanswered TCP data after which the kernel gives up
  bool gso = true;                      // false: one datagram per send, for tests and comparison
  bool gro = true;                      // false: one datagram per receive
  std::string allow;                    // networks that may talk to this process; empty: any
  bool monitor = false;                 // ask the kernel for the source of datagrams
  std::shared_ptr<const crypto::Identity> identity;  // of a guarded endpoint; else null
  uint32_t first_frame = 0;  // number of a stripe's first frame; not 0: tests, all alike

  static UdpTransportOptions from(const Config& config, size_t lane = 0) {
    UdpTransportOptions o;
    o.lane = lane;
    o.interface = config.interface;
    o.ipv6 = config.ipv6;
    o.max_mtu = config.max_mtu;
    o.rcvbuf = config.rcvbuf;
    o.sndbuf = config.sndbuf;
    // Credit frames leave behind the data that waits at the host's own interface, so keep that
    // small: 2 ms.
    if (config.link_rate > 0) {
      o.sndbuf = std::min(o.sndbuf, std::max(kLeastPaced, config.link_rate / 8 / 500));
    }
    o.ttl = config.ttl;
    (void)parse_port_range(config.port_range, o.ports);  // always valid: the config has checked it
    o.liveness_limit = config.liveness_limit;
    o.allow = config.allow;
    o.monitor = config.watches_sources();
    return o;
  }
};

// Cumulative; written and read by the lane's thread.
struct UdpStats {
  bool gso = false;                 // super-packets are being sent
  bool gro = false;                 // every receive socket accepts super-packets
  std::string gso_fallback_reason;  // why gso is off although it was requested
  uint64_t gso_fallbacks = 0;
  uint64_t send_calls = 0;  // system calls that sent something
  uint64_t datagrams_sent = 0;
  uint64_t would_block = 0;        // sends that the kernel could not take immediately
  uint64_t send_errors = 0;        // sends that the kernel refused
  uint64_t dropped_batches = 0;    // batches given up after a refusal
  uint64_t dropped_datagrams = 0;  // datagrams in those batches
  uint64_t oversize = 0;           // lend() beyond max_datagram()
  uint64_t receive_calls = 0;      // system calls that received something
  uint64_t datagrams_received = 0;
  uint64_t truncated = 0;  // longer than the buffer; dropped
  uint64_t receive_errors = 0;
  uint64_t empty_reads = 0;  // system calls that found nothing
};

// Cumulative; written and read by the lane's thread.
struct TcpStats : RefusalStats {
  uint64_t connections_opened = 0;
  uint64_t connect_retries = 0;
  uint64_t yielded = 0;  // connections given up in favour of the peer's
  uint64_t accept_errors = 0;
  uint64_t protocol_violations = 0;  // bad frame lengths, bytes after a goodbye
  uint64_t frames_dropped = 0;       // sent to a peer that is down or after close_peers()
};

}  // namespace mcast
