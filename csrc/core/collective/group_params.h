// What a group is made with, on one lane.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/trace.h"
#include "collective/host_inputs.h"
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
  uint64_t rate_test = 0;  // bytes of a train (rate_test.h); 0: rates are not compared
  uint64_t link_rate = 0;  // of a rank's link, bits per second; 0: not known
  // Bytes that the process's multicast lane has received: the reduce lane yields to them. May be
  // null.
  std::shared_ptr<const std::atomic<uint64_t>> arrived;
  // Of this member's datagrams on this lane, and of nobody else's; null: they are in clear.
  std::shared_ptr<crypto::DatagramGuard> guard;
};

struct GroupParams {
  std::string name;
  Member self = 0;
  uint64_t tag = 0;
  uint8_t lane = 0;
  Agreed agreed;  // agreed.members is the size
  // By member, what tells hosts apart, where ranks of one host fold their inputs before they send
  // them (agreed.contributors is then the number of hosts); empty: nowhere.
  std::vector<uint32_t> host_of;
  HostReader read_host;  // of members on this host; unless host_of is empty
  uint32_t arity = 32;
  Sequence first_sequence = 0;  // of its operations; the same at all members
  size_t staging = 4u << 20;
  size_t retransmit = 4u << 20;
  Nanos liveness_limit = 20 * kSecond;
  Nanos alpha = 2 * kMilli;
  Nanos probe_timeout = 2 * kSecond;
  Nanos aggregator_patience = kSecond;  // silence of a station after which it is given up
  Nanos partial = 0;  // waiting after which a reduction ends without late ranks; 0: never
  size_t partial_memory = 256u << 20;  // of results that wait for their calls: more is not excused
  LanePolicy policy = LanePolicy::kFair;
  MulticastUse multicast;
  std::shared_ptr<Trace> trace;  // may be null
};

}  // namespace mcast
