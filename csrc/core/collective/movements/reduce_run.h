// A reduction in flight at one member: its contributors and its source and destination memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collective/fold_share.h"
#include "collective/movements/host_inputs.h"
#include "collective/movements/one_step.h"
#include "collective/movements/reduce_args.h"
#include "collective/plan.h"
#include "protocol/hosts.h"
#include "protocol/reduce_owner.h"
#include "protocol/reduce_sender.h"
#include "wire/aggregation.h"

namespace mcast {

class ReduceRun {
 public:
  // State shared by all reductions of a group; outlives them.
  struct Shared {
    Hosts hosts;
    Member self;
    HostReader read_host;
    Counters& counters;
    uint64_t tag;  // of the group
    FoldOrder fold;
    Racks racks;         // of hosts
    Racks member_racks;  // the same, of members
    BufferPool pool;
    HostInputs::Scratch scratch;
  };
  // `dealt`: null if nothing of it is folded outside.
  ReduceRun(const Plan& plan, const ReduceArgs& args, Sequence sequence, Shared& shared,
            std::unique_ptr<FoldShare> dealt = nullptr);
  ~ReduceRun() { drop_memory(); }
  ReduceRun(const ReduceRun&) = delete;
  ReduceRun& operator=(const ReduceRun&) = delete;

  // Bytes of member `m`'s block, and our contribution to it.
  size_t length(Member m) const;
  Slice contribution(Member m) const;

  // The multicast half of an all_reduce: destinations of its streams, by member. Blocks that are
  // shorter than the others (and all streams of the one-step algorithm) are in scratch memory.
  const std::vector<Slice>& stream_outputs() const { return stream_outputs_; }
  // Result of our own block. `region->readable()` grows as segments are folded (publish()).
  const Slice& result() const { return result_; }
  // Raises the readable end of the part that may be multicast.
  void publish();
  // Notifies the owner of how much of our contribution to our own block can be read (staged
  // sources). In the one-step algorithm, takes our input once all of it is readable. Returns true
  // if anything changed.
  bool refresh_own();
  // Bytes of our own block that are final in the caller's memory, for completed ends.
  uint64_t completed() const;
  // Whether this stream is received into the caller's memory. Otherwise it is scratch.
  bool lands(uint32_t stream) const;
  // Whether the first `bytes` bytes of our contribution to member `m` can be read.
  bool readable(Member m, uint64_t bytes) const;
  // Our whole input can be read.
  bool all_readable() const { return args_.inputs_readable(); }
  // Our contribution to member `m`, folded with those of the other ranks of this host if they fold
  // first. Only for bytes that are readable(). Valid until the next call. Nullopt: see
  // host->refused().
  std::optional<ConstBytes> payload(Member m, size_t offset, size_t bytes);
  // Bytes of the payload for `bytes` of a block.
  size_t contribution_bytes(size_t bytes) const {
    return host && host->wide() ? FoldRule{args_.element}.accumulator_bytes(bytes) : bytes;
  }
  // PREMUL_SUM: factor by which the owner still has to multiply the payload.
  double factor() const { return host ? 1 : args_.factor; }
  // Contributors to our block in the order of folding. This member is one of them.
  const std::vector<Member>& contributors() const { return contributors_; }
  // Index of `m` in contributors(); nullopt if it is none.
  std::optional<Member> contributor(Member m) const;
  // The `i`-th of the other contributors to be granted. The order begins with the next one after
  // us, so that owners do not all ask the same contributor first.
  Member next_asked(uint32_t i) const {
    return contributors_[(own_.place + 1 + i) % contributors_.size()];
  }
  // reduce, at the root: destination of member `m`'s result.
  Slice destination(Member m) const { return part(args_.output, m); }

  // This rank takes part without its input.
  bool excused() const { return own_.excused; }

  // Takes a station's fold of a segment of our block. `of_others`: it lacks our contribution, which
  // is readable(). Returns false if the segment is not expected or has another length.
  bool place(uint32_t segment, bool of_others, ConstBytes payload);

  // All data is here: finishes the result in the caller's memory.
  void conclude();
  // Ranks that are missing in the result, perhaps this one; set by Reductions::excuse().
  std::optional<wire::PartialResult> partial;

  // The operation is over: releases the caller's memory and the state machines that point into it.
  void drop_memory();

  const std::unique_ptr<FoldShare> dealt;  // null: nothing is folded outside
  std::optional<HostInputs> host;          // if ranks of a host fold first
  // Exchange of inputs between ranks of this host.
  struct {
    bool offered = false;          // our input, to the others
    bool acknowledged = false;     // reported to the others that we have read theirs
    Nanos refused_until = kNever;  // when failing to read theirs becomes an error
  } inputs;
  std::optional<OneStep> one_step;  // instead of owner and sender
  std::optional<ReduceOwner> owner;
  std::optional<ReduceSender> sender;
  // Granting: number of contributors that have received the latest grant, and the end of the grant
  // before; segments granted in total; whether further grants wait for a window.
  struct {
    uint32_t granted = 0, before = 0;
    uint64_t asked = 0;
    bool held = false;
  } grants;
  uint64_t completed_end = 0;         // of our own block, as reported to the caller
  std::vector<size_t> unasked;        // by owner: bytes sent without a grant
  struct {                            // reduce:
    uint64_t sent = 0;                // of our own block, to the root
    std::vector<uint64_t> collected;  // at the root: by member, bytes of its result
  } to_root;

 private:
  void choose_memory();
  void make_owner(Sequence sequence);
  void make_sender();
  Slice part(const Slice& whole, Member m) const;
  uint32_t segments_of(Member m) const {
    return static_cast<uint32_t>((length(m) + plan_.reduce.segment - 1) / plan_.reduce.segment);
  }
  std::vector<ReduceSender::List> direct_lists() const;
  void add_station_lists(std::vector<ReduceSender::List>& lists) const;

  const Plan plan_;
  ReduceArgs args_;
  Shared& shared_;
  const uint32_t members_;
  const Member self_;
  std::vector<Member> contributors_;
  struct {
    Member place = 0;     // index among contributors_
    bool staged = false;  // our contribution was not all readable at the last check
    bool excused = false;
  } own_;
  std::vector<Slice> stream_outputs_;
  Slice result_;
};

}  // namespace mcast
