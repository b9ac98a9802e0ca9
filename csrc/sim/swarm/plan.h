// A plan of the swarm (the randomized test), as data: a world, its groups, their operations and the
// faults. Its text has one item per line, so that it can be stored, read by people, and reduced
// line by line:
//
//   world seed=7 hosts=3 rate=1.25e+09 queue=65536
//   set chunk=1408
//   rank rank=2 clock=0.1
//   aggregator lanes=2
//   group ranks=0,1,2
//   op kind=broadcast bytes=70000 root=1 late=2 by=3ms
//   op kind=all_to_all bytes=70000 splits=7
//   message from=1 to=2 bytes=40000 tag=3 at=1ms by=2ms
//   fault what=pause rank=1 at=2ms for=500ms
//
// A missing field has its default. Times are the world's, from its beginning: a number with ns, us,
// ms or s, or "never". Lines that begin with # are comments.
//
// Threads: data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/element.h"
#include "base/status.h"
#include "base/types.h"
#include "sim/world/exchange_content.h"
#include "sim/world/world.h"
#include "wire/descriptor.h"

namespace mcast::sim {

// Hosts, links, interfaces.
struct PlannedWorld {
  uint64_t seed = 1;
  uint32_t hosts = 2, ranks = 1;  // ranks: of each host
  std::string topology = "star";
  double rate = 1.25e9;  // bytes per second of each link
  Nanos delay = 5 * kMicro;
  uint64_t queue = 0;        // bytes at each port of a switch; 0: no limit
  uint64_t lossless = 0;     // bytes at which a port pauses its sender; 0: never
  uint64_t interface = 0;    // bytes that a transmit queue takes; 0: no limit
  uint32_t nic_queues = 1;   // of each host
  uint32_t train = 64;       // most packets that move together
  uint64_t datagram = 1440;  // largest, bytes
  uint64_t budget = 1u << 20;
  uint64_t bookkeeping = 0;  // bytes of a receiver's queue that each datagram takes besides its own
  uint64_t send_queue = 64 * 1024;
  uint64_t gathers = 0;  // 1: the device reads payloads in place
  Nanos jitter = 0, wake = 20 * kMicro, command = 0;
};

// A setting of all ranks (base/config.h).
struct PlannedSetting {
  std::string name, value;
};

// Special properties of a rank.
struct PlannedRank {
  uint32_t rank = 0;
  double clock = 1;  // its rate
  Nanos offset = 0;  // its initial value
  double slow = 1;   // its turns take this many times as long
};

// Memory that Linux 6 charges a socket per datagram of a super-packet, besides its bytes: one head
// for each, measured over loopback with 96 to 8,928 bytes (SO_MEMINFO).
inline constexpr uint64_t kLinuxBookkeeping = 832;

// Each is on a host of its own, after those of the ranks.
struct PlannedAggregator {
  double clock = 1;
  Nanos offset = 0;
  double slow = 1;
  uint64_t lanes = 1;           // stations of each group
  uint64_t quota = 512u << 20;  // bytes of all its jobs: with a small one it declines
};

struct PlannedGroup {
  std::vector<uint32_t> ranks;
  Nanos at = 0;
  uint64_t ring = 0;       // 1: algorithm ring
  uint64_t callbacks = 0;  // 1: each operation is posted from the done callback of the previous one
  // 1: a rank leaves when its own operations are over, else when all groups' are
  uint64_t early = 0;
};

// One call of all members of a group, in the order of the plan.
struct PlannedOp {
  uint32_t group = 0;
  wire::Kind kind = wire::Kind::kBarrier;
  uint64_t bytes = 0;   // length of a block; where they differ, of the longest
  uint64_t splits = 0;  // all_to_all: seed of block lengths that differ (exchange_content.h)
  uint32_t root = 0;
  Element element = Element::kInt32;
  Reduction reduction = Reduction::kSum;
  Nanos at = 0;  // earliest time of the call
  Nanos timeout = 1800 * kSecond;
  uint32_t late = kNoMember;  // this member calls later
  Nanos by = 0;
  uint32_t odd = kNoMember;  // this member calls with `odd_bytes`
  uint64_t odd_bytes = 0;
};

// A message from one member of a group to another, in parallel with the operations.
struct PlannedMessage {
  uint32_t group = 0;
  uint32_t from = 0, to = 1;  // members
  uint64_t bytes = 0;
  uint32_t tag = 0;
  uint64_t any = 0;      // 1: received with any source
  Nanos at = 0, by = 0;  // earliest times of the send and of the receive
  Nanos timeout = 1800 * kSecond;
};

// Kinds of faults. A fault with a length ends by itself.
enum class FaultKind : uint8_t {
  kPause,      // rank: its process does not run
  kKill,       // rank
  kIsolate,    // rank: nothing reaches or leaves it
  kMute,       // multicast of rank does not reach peer; "none": all ranks; `every`: on and off
  kReset,      // the connections between rank and peer break; peer learns it `much` later
  kJump,       // rank's clock jumps ahead by `much`
  kAbort,      // rank aborts `group`
  kClose,      // rank closes `group`, whatever is in flight, with `much` of patience
  kDrop,       // each receiver loses `rate` of the multicast datagrams, in runs of `burst`
  kLoss,       // each link loses `rate` of all packets, in runs of `burst`
  kDuplicate,  // `rate` of the datagrams arrive again, `burst` times, up to `much` later
  kReorder,    // `rate` of the datagrams arrive up to `much` later
  kCorrupt,    // `rate` of the datagrams have a wrong bit
  kReplay,     // `rate` of the datagrams arrive again up to `much` later, half with a foreign tag
  kCut,      // streams between rank and peer, "none": all, of `lane`, "none": both, carry nothing;
             // `every`: on and off. Longer than the liveness limit: TCP gives them up
  kDelay,    // packets from and to rank's host, "none": all, take `much` longer at each link
  kRefuse,   // interfaces refuse `rate` of the trains of multicast: a flush fails
  kForget,   // `rate` of the requests for repair are lost
  kFlood,    // somebody sends `burst` datagrams to the multicast addresses of rank, "none": of all,
             // on `lane`, "none": on both, each `every`; half of them are of another group
  kExit,     // rank's process ends in order once it has closed all its groups
  kAbsent,   // rank publishes its record for `group` and never makes the group
  kAggKill,  // aggregator: its process dies; another is started there when the fault ends
  kAggEnd,   // aggregator: it ends in order, with `much` of patience; another is started as above
  kAggPause,   // aggregator: its process does not run
  kAggCut,     // aggregator: nothing reaches or leaves it
  kAggRepeat,  // aggregator: `rate` of ranks' openings and contributions arrive twice
};
inline constexpr size_t kFaultKinds = static_cast<size_t>(FaultKind::kAggRepeat) + 1;
// Returns true for faults of an aggregator, as opposed to ranks or the network.
constexpr bool is_of_aggregator(FaultKind kind) { return kind >= FaultKind::kAggKill; }
const char* fault_name(FaultKind kind);

struct PlannedFault {
  FaultKind what = FaultKind::kPause;
  Nanos at = 0, length = kNever;  // `for` in the text
  uint32_t rank = 0, peer = kNoMember;
  uint32_t group = 0, lane = kNoMember, aggregator = 0;
  double rate = 0, burst = 1;
  Nanos much = 0, every = 0;

  Nanos end() const { return length > kNever - at ? kNever : at + length; }
  // Time when it ends; for a permanent one, when it begins.
  Nanos last_change() const { return end() == kNever ? at : end(); }
};

struct Plan {
  PlannedWorld world;
  std::vector<PlannedSetting> settings;
  std::vector<PlannedRank> special;
  std::vector<PlannedAggregator> aggregators;
  std::vector<PlannedGroup> groups;
  std::vector<PlannedOp> ops;
  std::vector<PlannedMessage> messages;
  std::vector<PlannedFault> faults;

  uint32_t ranks() const { return world.hosts * world.ranks; }
  // Hosts of ranks and of aggregators.
  uint32_t hosts() const { return world.hosts + static_cast<uint32_t>(aggregators.size()); }
};

std::string print(const Plan& plan);
// Returns the plan, which can be carried out, or the first wrong line and the reason.
Result<Plan> parse(std::string_view text);
// Returns an error of one line if the plan cannot be carried out.
Status check(const Plan& plan);
// Shape of an exchange as called by this member of its group; kNoMember: as called by those that
// are not odd.
ExchangeShape shape_of(const Plan& plan, const PlannedOp& op, Member caller);
// Settings of all groups of the plan.
Result<Config> config_of(const Plan& plan);
// Returns true if its groups are guarded (setting `security`).
bool is_guarded(const Plan& plan);
// Returns true if some of its groups may have parts: rails and host groups, or subgroups.
bool has_parts(const Plan& plan);

}  // namespace mcast::sim
