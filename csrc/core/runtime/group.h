// The public interface of a group: its calls, statistics and parameters.
//
// Threads: everything here may be called from any thread, concurrently. post_*() never blocks on
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
#include "base/landing.h"
#include "base/lane_id.h"
#include "base/monitor.h"
#include "base/region.h"
#include "base/status.h"
#include "base/trace.h"
#include "base/types.h"
#include "collective/aggregation_report.h"
#include "collective/request.h"
#include "wire/descriptor.h"

namespace mcast {

// Rendezvous: the functions of the c10d Store that the engine needs. Keys are already scoped to the
// group and its incarnation. Calls may block up to `timeout`, and are made from the thread that
// creates the group.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Waits until every key exists; values in the order of `keys`.
  virtual Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                                     Nanos timeout) = 0;
  // Identifies the keys of this group and incarnation among those of others in the same store. It
  // is part of the MACs of guarded groups.
  virtual Result<std::string> scope() { return std::string(); }
  // Writes `owner` under `key` unless the key exists, and returns the value that it then has. The
  // key is shared by all groups whose stores are parts of one store. A store that shares nothing
  // with others grants every key to its caller.
  virtual Result<std::string> claim(const std::string& /*key*/, const std::string& owner) {
    return owner;
  }
  // Host of the store, as a name or an address; empty if it is unknown or this host.
  virtual std::string host() const { return ""; }
};

// Properties that all ranks must agree on besides kind, sizes and root; shown in mismatch errors.
struct OpLabel {
  // The caller's code of the element type (c10::ScalarType). For a reduction, its Element.
  uint8_t element = 0;
  OpName name;  // of the public op, for messages
};

// Runs exactly once, on the lane thread or in the posting call, when the engine no longer holds a
// pointer into the regions. Must not block.
using Completion = std::function<void(const Status&)>;

struct PostOptions {
  // Counts from the call. When it passes, every rank gets kTimeout, which names the late ranks.
  Nanos timeout = 1800 * kSecond;
  OpLabel label;
  Completion done;
  // Completed ends, for outputs that are copied onwards (to device memory): the number of bytes
  // from its start that are final in the output of this index. Called about every `completed_step`
  // bytes and at the end of each output except this rank's own, but not after `done`. For a
  // reduce_scatter, `output` is 0. For an all_reduce, output r is the block that rank r folds; this
  // rank's own is reported, too, and blocks that are shorter than the others are not. Other
  // reductions and exchanges report only `done`. Must not block, nor call the group. Calls for
  // different outputs may be concurrent, on threads of the engine or in the posting call.
  std::function<void(uint32_t output, uint64_t bytes)> on_completed;
  // Number of ranks whose inputs are in the result of a reduction: lowered, before `done`, if some
  // are missing (setting `partial`). May be null.
  std::shared_ptr<std::atomic<uint32_t>> contributors;
  // Times of the first and last bytes, set before `done`; may be null.
  std::shared_ptr<Moments> moments;
  size_t completed_step = 1u << 20;
  // The calling thread waits for this operation right after the post (Group::help), so that between
  // ranks of one host no other thread needs to be woken for it. If it does not wait, the operation
  // continues within 100 ms.
  bool waited = false;
  // Test hook, null in production: receives the data of a broadcast or an all-gather in place of
  // the outputs, which must already hold it for ranks that it is forwarded to.
  std::shared_ptr<Landing> landing;
};

// State of one address of the setting `aggregators`, as known to rank 0.
struct AggregatorStats {
  std::string address;
  // "asking", "admitted", "refused", "unreachable", "lost", "draining". All but "admitted" are
  // asked again automatically.
  std::string state;
  std::string reason;     // why it is not admitted; may be empty
  uint32_t stations = 0;  // to which it has admitted the group
  double capacity = 0;    // of these together, in links of a rank
};

// Traffic that the group's lanes have refused. Groups that share lanes report the same values.
struct SecurityStats {
  std::string mode;              // setting `security`
  bool sources_watched = false;  // setting `monitor`
  // Set for a guarded group that uses a network; otherwise empty.
  std::string suite, library;
  bool trust_store = false;  // setting
  bool keys_locked = true;   // memory pages with keys, in the process that has them, are locked
  // Datagrams of the group: sealed by this rank, the latest of them in `epoch`; opened from others.
  // `untried`: datagrams, of all groups of its lanes, that were not opened because too many before
  // were forged.
  uint64_t sealed = 0, opened = 0, untried = 0;
  uint32_t epoch = 0;
  std::array<uint64_t, kCauses> causes{};
  struct SourceRow {
    std::string address;
    // `inherited` of these refusals may belong to another source, whose table slot this one has
    // taken over.
    uint64_t refused = 0, inherited = 0;
    std::array<uint64_t, kCauses> causes{};
  };
  static constexpr size_t kMostSources = 10;
  std::vector<SourceRow> sources;  // the sources with the most refusals

  // Adds the counts of another lane.
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
  std::string streams;  // receivers of large streams: "every rank", "one rank per host (4)"
  size_t chunk = 0;     // payload bytes per datagram
  size_t window = 0;    // payload bytes in flight per root when the group is alone
  size_t eager = 0;     // bytes
  size_t segment = 0;   // bytes of a contribution frame of large reductions
  PerLane<uint64_t> next_sequence;
  SecurityStats security;
  std::string failure;  // why the group is poisoned; empty if it is not
  std::vector<std::pair<const char*, uint64_t>> counters;  // in table order, both lanes together
  std::vector<uint64_t> reduce_counters;  // the part of `counters` that belongs to the reduce lane
  // Per peer (index = rank): repair bytes received from it, repair bytes sent to it.
  std::vector<std::pair<uint64_t, uint64_t>> repair_from_to;
  struct {
    std::vector<AggregatorStats> aggregators;  // on rank 0, in the order of the setting
    AggregationReport report;                  // empty in a group of one host or rank
    std::string no_partial;  // why no operation completes without late ranks; empty if one may
  } aggregation;
};

// A send or a receive between two ranks.
struct MessageCall {
  bool receives = false;
  Slice memory;             // to send, or to receive into; as long as the message
  Member peer = kNoMember;  // the other rank; for a receive, kNoMember accepts any
  uint32_t tag = 0;
  // Receive only: set to the sender before `done`. May be null.
  std::shared_ptr<std::atomic<Member>> source;
};

class Group {
 public:
  virtual ~Group() = default;

  virtual Member rank() const = 0;
  virtual Member size() const = 0;

  // Checks the arguments and posts. Each call returns the op's sequence number. Numbers are given
  // in call order, so the order of calls must be the same on all ranks. On bad arguments, or if the
  // group is closed or poisoned, no number is used and `done` is not called: the returned Status
  // has the error.
  virtual Result<Sequence> post(Request request, PostOptions options) = 0;

  // broadcast: `data` is read on the root and written elsewhere; same length on all ranks.
  Result<Sequence> post_broadcast(Slice data, Member root, PostOptions options) {
    Request request{wire::Kind::kBroadcast, {}, {}, root};
    (root == rank() ? request.inputs : request.outputs).push_back(std::move(data));
    return post(std::move(request), std::move(options));
  }
  // allgather: `outputs[i]` receives rank i's input; all lengths equal input.length on every rank.
  // In place: input.data() == outputs[rank].data(). Outputs must not overlap otherwise.
  Result<Sequence> post_allgather(Slice input, std::vector<Slice> outputs, PostOptions options) {
    return post({wire::Kind::kAllgather, {std::move(input)}, std::move(outputs)},
                std::move(options));
  }
  // Reductions have a separate sequence, on the reduce lane. Lengths are multiples of the element.
  // An output may be exactly its own input (all_reduce, reduce; reduce_scatter: this rank's block),
  // and must not overlap the inputs otherwise. Same element and reduction on all ranks.
  //
  // reduce_scatter: inputs[i] goes to rank i; `output` gets the reduction of all ranks'
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
    Request request{wire::Kind::kReduce, {std::move(input)}, {}, root, how};
    if (root == rank()) request.outputs.push_back(std::move(output));
    return post(std::move(request), std::move(options));
  }
  // all_to_all, gather, scatter (`kind`), in the sequence of the reductions. inputs[m] goes to rank
  // m, outputs[m] comes from rank m; both have an entry for each rank. gather: inputs[root] is set,
  // and on the root all outputs. scatter: outputs[root] is set, and on the root all inputs. Slices
  // of a gather or scatter that are set have one length on all ranks. all_to_all: all slices are
  // set, with any lengths, but outputs[m] must be as long as rank m's input for this rank
  // (otherwise all ranks get kMismatch). No output may overlap another slice, except that this
  // rank's own output may be exactly its own input, which is read during the call. Both may be
  // empty if that block is already in place.
  Result<Sequence> post_exchange(wire::Kind kind, std::vector<Slice> inputs,
                                 std::vector<Slice> outputs, Member root, PostOptions options) {
    return post({kind, std::move(inputs), std::move(outputs), root}, std::move(options));
  }
  // Completes when all earlier ops of this group are complete on all ranks and all have posted it.
  Result<Sequence> post_barrier(PostOptions options) {
    return post({wire::Kind::kBarrier, {}, {}}, std::move(options));
  }

  // Messages from one rank to another are in no sequence with the calls above, because only two
  // ranks take part in each (docs/point-to-point.md). Messages with the same sender, receiver and
  // tag are received in order. Returns whether this group carries messages; the value is the same
  // on all ranks.
  virtual bool carries_messages() const { return false; }
  // Uses the following options: time limit, name, `done`; for a receive also on_completed, for
  // output 0 and, unless this is a client of an engine, not at its end. On an error `done` is not
  // called.
  virtual Status post_message(MessageCall call, PostOptions options);

  // Ok if operations of this group use memory of the process's ArenaPool (which is made if needed)
  // in place; other memory is copied. Otherwise the reason why they do not. May wait for the engine
  // of the host.
  virtual Status maps_pool();

  // Lends the calling thread to `lane` until `done()` returns true or until the time `until`:
  // between ranks of one host a thread that waits for a result does the work itself. Returns false
  // immediately if there is nothing to help with, or if another thread helps. Callbacks of
  // operations may run on this thread.
  virtual bool help(LaneId lane, const std::function<bool()>& done, Nanos until) {
    (void)lane, (void)done, (void)until;
    return false;
  }

  // Returns a function to call after a Region's readable end was raised, so that the lane checks it
  // soon. Any thread; may outlive the group.
  virtual std::function<void()> waker() const = 0;

  // Fails all operations in flight on all ranks, and every later post. Idempotent.
  virtual void abort(const std::string& reason) = 0;
  // Waits until all posted operations are complete and confirmed by all ranks, at most `limit`;
  // then leaves the group. Idempotent. The destructor does the same with the configured linger.
  virtual Status close(Nanos limit) = 0;
  // Like close(), but waits at most until the operations' own time limits have passed, which fails
  // the group with the names of the late ranks. `hurry` is called five times per second: once it
  // returns true, the rest is give_up() with the configured linger.
  virtual Status close_in_order(const std::function<bool()>& hurry) = 0;
  // Like close(), after an error or an interrupt on this rank: unfinished operations fail at once
  // on all ranks (kAborted here, or another rank's earlier error). Waits only for the confirmation
  // of finished operations.
  virtual Status give_up(Nanos limit) = 0;

  virtual GroupStats stats() const = 0;

  // Runs once, at the group's first failure, whatever its kind and whichever rank found it;
  // immediately if the group has already failed. On any thread; must not block, nor call the group.
  // At most one listener.
  virtual void on_failure(std::function<void(const Status&)> listener) = 0;
};

struct GroupSpec {
  std::string name;  // shown in errors and stats
  Member rank = 0;
  uint32_t size = 1;  // 1..65534
  Config config;
  Nanos timeout = 1800 * kSecond;  // of the creation
  // The backends of calls that the engine does not serve: "cpu=gloo,cuda=nccl". For a device type
  // that two ranks both have, they must name the same one. Empty: not compared.
  std::string fallback{};
  // Called now and then on the calling thread while the creation waits. True cancels it (kAborted).
  std::function<bool()> interrupted;
  // For groups that the engine makes as parts of others (runtime/split.h). They are not traced.
  bool part = false;
  uint32_t part_index = 0;    // number of the part, from 1
  uint32_t link_sharers = 1;  // number of groups that use the links at once
  uint32_t lane = 0;          // number of the multicast lane; 0: the shared one
  // The clock, if it is not CLOCK_MONOTONIC (in a simulation). Any thread.
  std::function<Nanos()> clock;
};

}  // namespace mcast
