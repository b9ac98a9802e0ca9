// Carries out a plan: makes its world and groups, has every rank make its calls in order, lets the
// faults happen, waits until all is over, closes the groups, and waits until nothing happens any
// more. Says what became of everything; whether that is right is for laws.h.
// Threads: one. Equal plans give equal runs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/counters.h"
#include "collective/plan.h"
#include "simulation/swarm/plan.h"
#include "simulation/world.h"
#include "transport/sim/heap_meter.h"

namespace mcast::sim {

inline constexpr Nanos kMakeLimit = 300 * kSecond;  // until a group is given up that is not made

// Of what a rank has called.
struct Ending {
  bool called = false;  // else its rank never came to it
  int ends = 0;         // how often it ended
  Status status;
  std::string wrong;  // of its bytes
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

// Of one call at one member.
struct CallEnd : Ending {
  uint32_t op = 0;  // in the plan
  Member member = 0;
  uint32_t rank = 0;
};

// Of a message's send, or of its receive.
struct MessageEnd : Ending {
  uint32_t message = 0;  // in the plan
  bool receives = false;
  uint32_t rank = 0;
  bool ready = false;   // its rank has the group,
  bool carried = true;  // which carries messages
};

// Of one group.
struct GroupEnd {
  std::vector<Status> making;                      // by member: what became of its making
  std::vector<bool> ready;                         // who knows that
  std::array<uint64_t, kCounterCount> counters{};  // of all members, before the groups are closed
  bool multicast = false;                          // the path that all of them began with
  bool parts = false;                              // it has rails, host groups or subgroups
  std::optional<Agreed> agreed;                    // once it is made
  uint64_t chunks = 0;                             // of the streams of all its operations
  uint64_t exchanged = 0;  // bytes that its exchanges bring from one rank to another
  uint64_t unpaced = 0;    // chunks that roots in turn may send to who takes none, of an operation
  uint64_t request = 1;    // chunks that one request for repair may name
  uint64_t total(Counter counter) const { return counters[static_cast<size_t>(counter)]; }
};

// Of one aggregator.
struct AggregatorEnd {
  bool runs = false;              // after the last close
  uint64_t jobs = 0;              // the same: that it still has
  uint64_t reserved = 0;          // the same: bytes
  uint64_t overdrawn = 0;         // bytes reserved beyond its quota, at most
  uint64_t malformed = 0;         // frames that its stations could not read, at most
  uint64_t taken = 0, given = 0;  // frames of its stations, before the groups are closed
  std::array<uint64_t, kCounterCount> counters{};  // of its stations, at most, that it reports
};

// Bytes that the engine had allocated for a rank, beyond those before the first group.
struct HeapEnd {
  uint64_t most = 0;
  uint64_t left = 0;  // when all groups are closed and gone
};

// Of all that ranks have called.
struct CallEnds {
  std::vector<CallEnd> calls;
  std::vector<MessageEnd> messages;
};

struct RunEnd : CallEnds {
  uint64_t hash = 0, spins = 0;
  // All calls of ranks that live have ended; if not, whether anything was left to happen.
  bool over = false, stuck = false;
  bool busy = false;    // it was given up after far too many events: nothing below is known
  bool closed = false;  // so have all closes
  bool still = false;   // and then nothing was left to happen, in bounded time
  Nanos over_at = 0;
  uint64_t sent_idle = 0;     // datagrams and frames, 10 s after the last end, with all groups open
  uint64_t sent_closed = 0;   // the same after the last close
  uint64_t data_packets = 0;  // that hosts have sent
  uint64_t overflowed = 0;    // of data, that found a receiver's queue full, once groups were made
  uint64_t unreadable = 0;    // what lanes could not read, so that it is no group's
  size_t overstaged = 0;      // bytes kept beyond the setting `staging`, at most
  std::vector<GroupEnd> groups;
  std::vector<AggregatorEnd> aggregators;
  std::vector<HeapEnd> heap;                      // by rank; empty: nobody has booked it
  std::array<uint64_t, kCounterCount> reached{};  // counters, up to the end
  std::array<uint64_t, kFaultKinds> happened{};   // how often each kind of fault did
  uint64_t count(FaultKind kind) const { return happened[static_cast<size_t>(kind)]; }
};

// The plan can be carried out (check()). `meter`: books the heap by rank; null: nobody does.
RunEnd carry_out(const Plan& plan, HeapMeter* meter = nullptr);

}  // namespace mcast::sim
