// One group, as its users see it: what is posted to it, what it tells, what it is made of.
//
// Threads: everything here may be called from any thread, also at once. post_*() never blocks on
// the network. No call throws across a thread; errors are Status.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/counters.h"
#include "base/element.h"
#include "base/landing.h"
#include "base/lane_id.h"
#include "base/monitor.h"
#include "base/region.h"
#include "base/status.h"
#include "base/trace.h"
#include "base/types.h"
#include "collective/aggregation_report.h"
#include "wire/descriptor.h"

namespace mcast {

// Rendezvous: what the engine needs of the c10d Store. Keys are already scoped to the group and its
// incarnation. Calls may block up to `timeout` and are made from the thread that creates the group.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Waits until every key exists; values in the order of `keys`.
  virtual Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                                     Nanos timeout) = 0;
  // What tells the keys of this group and incarnation from those of others in the same store: goes
  // into the MACs of guarded groups.
  virtual Result<std::string> scope() { return std::string(); }
  // Writes `owner` under `key`, which is the same for all groups whose stores are parts of one,
  // unless something is there already. Returns what is there then. A store that has nothing in
  // common with others gives every key to who asks.
  virtual Result<std::string> claim(const std::string& /*key*/, const std::string& owner) {
    return owner;
  }
  // Where it is, a name or a number; empty: not known, or on this host.
  virtual std::string host() const { return ""; }
};

// How contributions become one (base/reduce_kernels.h has the numerics contract: a fixed order,
// 16-bit floats accumulate in float32 and are rounded once).
struct Reducing {
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  double factor = 1;  // PREMUL_SUM: what this rank's contribution is multiplied with
};

// What all ranks must agree on besides kind, sizes and root: shown in mismatch errors.
struct OpLabel {
  // The caller's code of the element type (c10::ScalarType); a reduction's is its Element.
  uint8_t element = 0;
  const char* name = "";  // static; name of the public op, for messages
};

// Runs exactly once, on the lane thread or in the posting call, when the engine holds no pointer
// into the regions any more. Must not block.
using Completion = std::function<void(const Status&)>;

struct PostOptions {
  Nanos timeout = 1800 * kSecond;  // from now; then every rank gets kTimeout naming the late ranks
  OpLabel label;
  Completion done;
  // Completed ends, for destinations that are only a stop on the way (device memory): how many
  // bytes from its start the output of this index holds for good. Called about every
  // `completed_step` bytes and at the end of each output but the own one; not after `done`. A
  // reduce_scatter has output 0; an all_reduce one per rank, the block that this rank folds, with
  // the own one and without shorter ones; others have none, `done` says so. Must not
  // block, nor call the group. Calls for different outputs may be concurrent, on threads of the
  // engine's or in the posting call.
  std::function<void(uint32_t output, uint64_t bytes)> on_completed;
  // How many ranks' inputs are in the result of a reduction: lowered, before `done`, where it ends
  // without some (setting `partial`). May be null.
  std::shared_ptr<std::atomic<uint32_t>> contributors;
  std::shared_ptr<Moments> moments;  // when bytes came, before `done`. May be null
  size_t completed_step = 1u << 20;
  // The calling thread waits for this operation right after the post (Group::help), so that between
  // ranks of one host no other thread need be woken for it meanwhile. If it never waits, the
  // operation goes on within 100 ms.
  bool waited = false;
  // Null in the product. If there is one, what a broadcast or an all-gather receives goes there;
  // the outputs already hold it, for whom it is passed on to.
  std::shared_ptr<Landing> landing;
};

// One address of the setting `aggregators`, as rank 0 knows it.
struct AggregatorStats {
  std::string address;
  // "asking", "admitted", "refused", "unreachable", "lost", "draining": all but "admitted" are
  // asked again by themselves.
  std::string state;
  std::string reason;     // why not; may be empty
  uint32_t stations = 0;  // that it has admitted the group to
  double capacity = 0;    // of these together, in links of a rank
};

// What the group's lanes have refused; groups that share lanes show the same.
struct SecurityStats {
  std::string mode;              // setting `security`
  bool sources_watched = false;  // setting `monitor`
  // Of a guarded group, where it uses a network; else empty.
  std::string suite, library;
  bool trust_store = false;  // setting
  bool keys_locked = true;   // pages with keys of the process that has them, in memory
  // Datagrams of the group: of this rank, sealed, the latest in this epoch; of others, opened. And
  // such, of all groups of its lanes, that were not tried, since too many before had been forged.
  uint64_t sealed = 0, opened = 0, untried = 0;
  uint32_t epoch = 0;
  std::array<uint64_t, kCauses> causes{};
  struct SourceRow {
    std::string address;
    // Of these `inherited` may be another source's, whose place in the table it has taken.
    uint64_t refused = 0, inherited = 0;
    std::array<uint64_t, kCauses> causes{};
  };
  static constexpr size_t kMostSources = 10;
  std::vector<SourceRow> sources;  // those with most

  // Of another lane.
  void add(const Monitor& monitor);
};

struct GroupStats {
  std::string name;
  std::string path;              // "multicast", "ring", "shared memory", "local" (one rank)
  std::string reason;            // why that path
  std::string transport;         // one line: interface, addresses, MTU, buffers, offloads
  std::string transport_reason;  // why that transport
  std::string contributions;     // to a block of a reduction: "one per rank", "one per host (4)"
  std::string fold;              // order of folding: "rank", "turn"
  std::string streams;           // large ones: received by "every rank", "one rank per host (4)"
  size_t chunk = 0;              // payload bytes per datagram
  size_t window = 0;             // payload bytes in flight per root when the group is alone
  size_t eager = 0;              // bytes
  size_t segment = 0;            // bytes of a contribution frame of large reductions
  PerLane<uint64_t> next_sequence;
  SecurityStats security;
  std::string failure;                                     // empty, or why the group is poisoned
  std::vector<std::pair<const char*, uint64_t>> counters;  // in table order, both lanes together
  std::vector<uint64_t> reduce_counters;                   // the reduce lane's part of them
  // Per peer (index = rank): repair bytes received from it, repair bytes sent to it.
  std::vector<std::pair<uint64_t, uint64_t>> repair_from_to;
  struct {
    std::vector<AggregatorStats> aggregators;  // on rank 0, in the order of the setting
    AggregationReport report;                  // empty in a group of one host or rank
    std::string no_partial;                    // why nothing ends without late ranks; empty: it may
  } aggregation;
};

// A send or a receive between two ranks.
struct MessageCall {
  bool receives = false;
  Slice memory;             // read, or written; as long as the message
  Member peer = kNoMember;  // the other rank; of a receive kNoMember: any
  uint32_t tag = 0;
  // Of a receive: who has sent the message, before `done`. May be null.
  std::shared_ptr<std::atomic<Member>> source;
};

class Group {
 public:
  virtual ~Group() = default;

  virtual Member rank() const = 0;
  virtual Member size() const = 0;

  // Each returns the op's sequence number, taken in call order: the order of calls must be the same
  // on all ranks. On bad arguments, a closed or a poisoned group no sequence is taken and `done` is
  // not called: the Status is the answer.
  //
  // broadcast: `data` is read on the root, written elsewhere; same length everywhere.
  Result<Sequence> post_broadcast(Slice data, Member root, PostOptions options) {
    return post({wire::Kind::kBroadcast, {}, {std::move(data)}, root}, std::move(options));
  }
  // allgather: `outputs[i]` receives rank i's input; all lengths equal input.length on every rank.
  // In place: input.data() == outputs[rank].data(). Outputs must not overlap otherwise.
  Result<Sequence> post_allgather(Slice input, std::vector<Slice> outputs, PostOptions options) {
    return post({wire::Kind::kAllgather, {std::move(input)}, std::move(outputs)},
                std::move(options));
  }
  // Reductions have a sequence of their own, on the reduce lane. Lengths are multiples of the
  // element. An output may be its own input exactly (all_reduce, reduce; reduce_scatter: the rank's
  // own block), and must not overlap the inputs otherwise. Same element and reduction on all ranks.
  //
  // reduce_scatter: inputs[i] goes to rank i; `output` gets the reduction of everybody's
  // inputs[rank]. All lengths are equal.
  Result<Sequence> post_reduce_scatter(std::vector<Slice> inputs, Slice output, Reducing how,
                                       PostOptions options) {
    return post(
        {wire::Kind::kReduceScatter, std::move(inputs), {std::move(output)}, kNoMember, how},
        std::move(options));
  }
  // all_reduce: input.length == output.length.
  Result<Sequence> post_allreduce(Slice input, Slice output, Reducing how, PostOptions options) {
    return post({wire::Kind::kAllreduce, {std::move(input)}, {std::move(output)}, kNoMember, how},
                std::move(options));
  }
  // reduce: `output` on the root only, empty elsewhere.
  Result<Sequence> post_reduce(Slice input, Slice output, Member root, Reducing how,
                               PostOptions options) {
    return post({wire::Kind::kReduce, {std::move(input)}, {std::move(output)}, root, how},
                std::move(options));
  }
  // all_to_all, gather, scatter (`kind`), in the sequence of the reductions: inputs[m] goes to rank
  // m, outputs[m] comes from there, both have an entry for each rank. Of a gather inputs[root] is
  // there, and on the root all outputs; of a scatter outputs[root], and on the root all inputs: of
  // one length on all ranks. Of an all_to_all all are there, of any length, as long as outputs[m]
  // has that of the input that rank m has for this one (else all ranks get kMismatch). No output
  // may overlap another slice, but the own one be the own input exactly, which is read in the call;
  // both of them may be empty, if that block is where it belongs.
  Result<Sequence> post_exchange(wire::Kind kind, std::vector<Slice> inputs,
                                 std::vector<Slice> outputs, Member root, PostOptions options) {
    return post({kind, std::move(inputs), std::move(outputs), root}, std::move(options));
  }
  // Completes when all earlier ops of this group are complete on all ranks and all have posted it.
  Result<Sequence> post_barrier(PostOptions options) {
    return post({wire::Kind::kBarrier, {}, {}}, std::move(options));
  }

  // Messages from one rank to one other are in no sequence with the calls above: not all ranks make
  // them (docs/point-to-point.md). Those with one sender, receiver and tag are received in order.
  // Whether this group carries them, as all of its ranks say or none.
  virtual bool carries_messages() const { return false; }
  // Of the options only limit, name and `done` count, and of a receive on_completed, for output 0
  // and not at its end, unless this is a client of an engine. Not ok: `done` is not called.
  virtual Status post_message(MessageCall call, PostOptions options);

  // Ok: operations of this group use memory of the process's ArenaPool (which is made, if need be)
  // where it lies, other memory is copied. Else why they do not. May wait for the engine of the
  // host.
  virtual Status maps_pool();

  // Lends the calling thread to `lane` until `done()` is true or `until`
  // has come: between ranks of one host a thread that waits for a result does its work itself.
  // False, at once: there is nothing to help with, or another thread does it. Callbacks of
  // operations may run on this thread.
  virtual bool help(LaneId lane, const std::function<bool()>& done, Nanos until) {
    (void)lane, (void)done, (void)until;
    return false;
  }

  // To be called after a Region's readable end rose: the lane looks at it soon. Any thread; may
  // outlive the group.
  virtual std::function<void()> waker() const = 0;

  // Fails everything in flight on all ranks, and every later post. Idempotent.
  virtual void abort(const std::string& reason) = 0;
  // Waits until everything posted is complete and confirmed by all ranks, at most `limit`; then
  // leaves the group. Idempotent; the destructor does the same with the configured linger.
  virtual Status close(Nanos limit) = 0;
  // The same, at most until the operations' own time limits have passed, which fails the group with
  // the ranks that are late. `hurry` is asked five times a second: once it says so, the rest is
  // give_up() with the configured linger.
  virtual Status close_in_order(const std::function<bool()>& hurry) = 0;
  // The same after an error or an interrupt here: operations that are not over fail at once on all
  // ranks (kAborted here, or another rank's error that came first), only the confirmation of those
  // that are is waited for.
  virtual Status give_up(Nanos limit) = 0;

  virtual GroupStats stats() const = 0;

  // Runs once, at the group's first failure, of whatever kind and whoever found it; at once, if
  // there is one already. On any thread; must not block, nor call the group. At most one listener.
  virtual void on_failure(std::function<void(const Status&)> listener) = 0;

 protected:
  // What a call hands over; which of it counts is the kind's.
  struct Call {
    wire::Kind kind;
    std::vector<Slice> inputs, outputs;
    Member root = kNoMember;
    Reducing how = {};
  };
  // Checks the arguments and posts.
  virtual Result<Sequence> post(Call call, PostOptions options) = 0;
};

struct GroupSpec {
  std::string name;  // shown in errors and stats
  Member rank = 0;
  uint32_t size = 1;  // 1..65534
  Config config;
  Nanos timeout = 1800 * kSecond;  // for the creation
  // What serves calls that the engine does not: "cpu=gloo,cuda=nccl". All ranks must say the same
  // of a device type that both have. Empty: nothing is compared.
  std::string fallback{};
  // Asked now and then on the calling thread while the creation waits; true: give it up (kAborted).
  std::function<bool()> interrupted;
  // Of groups that the engine makes as parts of others (engine/split.h). They are not traced.
  bool part = false;
  uint32_t part_index = 0;    // which of them, from 1
  uint32_t link_sharers = 1;  // how many that use the links at once
  uint32_t lane = 0;          // which multicast lane; 0: everybody's
  // What the time is, where it is not CLOCK_MONOTONIC: in a simulation. Any thread.
  std::function<Nanos()> clock;
};

}  // namespace mcast
