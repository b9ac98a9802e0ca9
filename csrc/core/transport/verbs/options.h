// Options and statistics of the verbs transport. Includes no verbs header, because the engine
// includes this one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/config.h"
#include "base/types.h"
#include "crypto/handshake.h"
#include "transport/refused_connections.h"

namespace mcast {

struct VerbsOptions {
  std::string hca;                      // NCCL grammar, see hca.h; empty: the first active port
  std::string interface;                // as for UDP: only ports behind these; empty: all
  size_t lane = 0;                      // an exact list gives its i-th port to lane i
  uint64_t max_mtu = 9000;              // bytes of IP packet
  uint64_t rcvbuf = 32 << 20;           // bytes of pre-posted receives requested
  uint64_t ttl = 1;                     // hop limit of multicast datagrams, RoCE
  Nanos liveness_limit = 20 * kSecond;  // a dead peer is detected within less than this
  Nanos join_patience = 2 * kSecond;    // for the subnet manager's reply, or IGMP
  unsigned cores = 0;                   // of this host, for tests; 0: the actual number
  bool loopback = false;                // ports behind lo count too: for tests without a device
  std::shared_ptr<const crypto::Identity> identity;  // of a guarded endpoint; else null

  static VerbsOptions from(const Config& config, size_t lane = 0) {
    VerbsOptions o;
    o.lane = lane;
    o.hca = config.ib_hca;
    o.interface = config.interface;
    o.max_mtu = config.max_mtu;
    o.rcvbuf = config.rcvbuf;
    o.ttl = config.ttl;
    o.liveness_limit = config.liveness_limit;
    o.join_patience = config.probe_timeout;
    return o;
  }
};

// Cumulative; written and read by the lane's thread.
struct UdStats {
  uint64_t datagrams_sent = 0, datagrams_received = 0;
  uint64_t send_posts = 0;          // chains of work requests
  uint64_t send_completions = 0;    // signalled ones only
  uint64_t would_block = 0;         // the send ring was full
  uint64_t send_errors = 0;         // completions with an error, refused posts
  uint64_t dropped_datagrams = 0;   // could not be sent: no address handle, errors
  uint64_t gathered_datagrams = 0;  // committed with the payload in the caller's memory
  uint64_t gather_refusals = 0;     // pieces of memory that could not be registered for it
  uint64_t receive_errors = 0;
  uint64_t receive_posts = 0;  // chains of receives
  uint64_t low_water = 0;      // times the posted receives ran low
  uint64_t own_echo = 0;       // own datagrams that the network returned
  uint64_t truncated = 0;      // shorter than their routing header
  uint64_t rejoins = 0;        // memberships renewed after an address or subnet change
  uint64_t rebuilds = 0;       // datagram queue pairs replaced after an error
  uint64_t join_failures = 0;  // failed rejoins and send-only joins; tried again later
};

// Cumulative; written and read by the lane's thread.
struct RcStats : RefusalStats {
  uint64_t connections_opened = 0;
  uint64_t connect_retries = 0;
  uint64_t yielded = 0;
  uint64_t protocol_violations = 0;
  uint64_t frames_dropped = 0;
  uint64_t credit_waits = 0;     // messages that waited for receives of the peer
  uint64_t credit_messages = 0;  // sent only to return credits
  uint64_t reads_posted = 0, reads_completed = 0, read_bytes = 0;  // RDMA Read
};

}  // namespace mcast
