// Runs a plan: makes its world and groups, has every rank make its calls in order, applies the
// faults, waits until all calls are over, closes the groups, and waits until no event is left.
// Returns the outcome of everything; laws.h checks it.
//
// Threads: one. Equal plans give equal runs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/counters.h"
#include "collective/plan.h"
#include "sim/network/heap_meter.h"
#include "sim/swarm/plan.h"
#include "sim/world/world.h"

namespace mcast::sim {

inline constexpr Nanos kMakeLimit = 300 * kSecond;  // until a group that is not made is given up

// Outcome of a rank's call.
struct Ending {
  bool called = false;  // else its rank never reached it
  int ends = 0;         // how often it ended
  Status status;
  std::string wrong;  // first wrong byte
  Nanos posted = kNever, done = kNever;

  void note(const Outcome& outcome) {
    called = true;
    ends = outcome.ends;
    status = outcome.status;
    wrong = outcome.wrong;
    posted = outcome.posted;
    done = outcome.done;
  }
};

// Outcome of one operation at one member.
struct CallEnd : Ending {
  uint32_t op = 0;  // index in the plan
  Member member = 0;
  uint32_t rank = 0;
};

// Outcome of the sending or the receiving side of a message.
struct MessageEnd : Ending {
  uint32_t message = 0;  // index in the plan
  bool receives = false;
  uint32_t rank = 0;
  bool ready = false;   // its rank has the group,
  bool carried = true;  // which carries messages
};

// Outcome of one group.
struct GroupEnd {
  std::vector<Status> making;                      // by member: outcome of its creation
  std::vector<bool> ready;                         // by member: the outcome is known
  std::array<uint64_t, kCounterCount> counters{};  // of all members, before the groups are closed
  bool multicast = false;                          // the path with which all of them began
  bool parts = false;                              // it has rails, host groups or subgroups
  std::optional<Agreed> agreed;                    // once it is made
  uint64_t chunks = 0;                             // of the streams of all its operations
  uint64_t exchanged = 0;  // bytes that its exchanges move from one rank to another
  // Most chunks of an operation that roots in turn may send to a rank that consumes none.
  uint64_t unpaced = 0;
  uint64_t request = 1;  // most chunks in one request for repair
  uint64_t total(Counter counter) const { return counters[static_cast<size_t>(counter)]; }
};

// Final state of one aggregator.
struct AggregatorEnd {
  bool runs = false;              // after the last close
  uint64_t jobs = 0;              // also then: jobs that it still has
  uint64_t reserved = 0;          // also then: bytes
  uint64_t overdrawn = 0;         // bytes reserved beyond its quota, at most
  uint64_t malformed = 0;         // frames that its stations could not read, at most
  uint64_t taken = 0, given = 0;  // frames of its stations, before the groups are closed
  std::array<uint64_t, kCounterCount> counters{};  // of its stations, the most that it reported
};

// Bytes that the engine had allocated for a rank, beyond those before the first group.
struct HeapEnd {
  uint64_t most = 0;
  uint64_t left = 0;  // when all groups are closed and gone
};

// Counts of all calls of ranks.
struct CallEnds {
  std::vector<CallEnd> calls;
  std::vector<MessageEnd> messages;
};

struct RunEnd : CallEnds {
  uint64_t hash = 0, spins = 0;
  // All calls of live ranks have ended; if not, whether no event was left.
  bool over = false, stuck = false;
  bool busy = false;    // given up after far too many events: the fields below are not set
  bool closed = false;  // all closes have ended too
  bool still = false;   // afterwards no event was left, in bounded time
  Nanos over_at = 0;
  uint64_t sent_idle = 0;     // datagrams and frames, 10 s after the last end, with all groups open
  uint64_t sent_closed = 0;   // also after the last close
  uint64_t data_packets = 0;  // sent by hosts
  // Data datagrams that found a receiver's queue full, once groups were made.
  uint64_t overflowed = 0;
  // Datagrams that lanes could not parse, and so could not assign to a group.
  uint64_t unreadable = 0;
  size_t overstaged = 0;  // bytes kept beyond the setting `staging`, at most
  std::vector<GroupEnd> groups;
  std::vector<AggregatorEnd> aggregators;
  std::vector<HeapEnd> heap;                      // by rank; empty: not metered
  std::array<uint64_t, kCounterCount> reached{};  // counters, up to the end
  std::array<uint64_t, kFaultKinds> happened{};   // how often each kind of fault happened
  uint64_t count(FaultKind kind) const { return happened[static_cast<size_t>(kind)]; }
};

// The plan must pass check(). `meter`: accounts the heap by rank; null: not metered.
RunEnd carry_out(const Plan& plan, HeapMeter* meter = nullptr);

}  // namespace mcast::sim
