// Parameters of a group on one lane.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/trace.h"
#include "collective/external_fold.h"
#include "collective/movements/host_inputs.h"
#include "collective/plan.h"
#include "protocol/ingress_share.h"

namespace mcast {

namespace crypto {
class DatagramGuard;
}

struct MulticastUse {
  bool wanted = true;      // false: straight to the ring
  bool required = false;   // a failed probe fails the group
  std::string problem;     // not empty: this member cannot multicast, and why
  size_t headers = 28;     // of the IP packet of a datagram
  uint64_t rate_test = 0;  // bytes of a train (rate_test.h); 0: rates are not compared
  uint64_t link_rate = 0;  // of a rank's link, bits per second; 0: not known
  // Bytes that the process's multicast lane has received; the reduce lane yields to them. May be
  // null.
  std::shared_ptr<const std::atomic<uint64_t>> arrived;
  // Guards this member's datagrams on this lane, and no others. Null: they are sent in clear.
  std::shared_ptr<crypto::DatagramGuard> guard;
};

struct GroupParams {
  std::string name;
  Member self = 0;
  uint64_t tag = 0;
  uint8_t lane = 0;
  Agreed agreed;  // agreed.members is the size
  // By member: identifies its host, where ranks of one host fold their inputs before they send them
  // (agreed.contributors is then the number of hosts). Empty: ranks do not do so.
  std::vector<uint32_t> host_of;
  HostReader read_host;  // of members on this host; set unless host_of is empty
  uint32_t arity = 32;
  Sequence first_sequence = 0;  // of the first operation; the same at all members
  size_t staging = 4u << 20;
  size_t retransmit = 4u << 20;
  Nanos liveness_limit = 20 * kSecond;
  Nanos alpha = 2 * kMilli;
  Nanos probe_timeout = 2 * kSecond;
  ExternalFoldMaker fold = nullptr;     // null: ranks fold everything
  Nanos aggregator_patience = kSecond;  // silence after which a station is given up
  Nanos partial = 0;  // wait after which a reduction ends without late ranks; 0: never
  // For results that wait for late calls; beyond it no rank is excused.
  size_t partial_memory = 256u << 20;
  LanePolicy policy = LanePolicy::kFair;
  MulticastUse multicast;
  std::shared_ptr<Trace> trace;  // may be null
};

}  // namespace mcast
