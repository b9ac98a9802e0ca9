// A reduction in flight at one member: whose blocks, from which memory, into which.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collective/host_inputs.h"
#include "collective/one_step.h"
#include "collective/plan.h"
#include "collective/reduce_args.h"
#include "collective/station_share.h"
#include "protocol/hosts.h"
#include "protocol/reduce_owner.h"
#include "protocol/reduce_sender.h"
#include "wire/aggregation.h"

namespace mcast {

class ReduceRun {
 public:
  // What all reductions of a group share; outlives them.
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
  // `stations`: null: they fold nothing of it.
  ReduceRun(const Plan& plan, const ReduceArgs& args, Sequence sequence, Shared& shared,
            std::unique_ptr<StationShare> stations = nullptr);
  ~ReduceRun() { drop_memory(); }
  ReduceRun(const ReduceRun&) = delete;
  ReduceRun& operator=(const ReduceRun&) = delete;

  // Bytes of member `m`'s block, and our contribution to it.
  size_t length(Member m) const;
  Slice contribution(Member m) const;

  // The multicast half of an all_reduce: the streams of its streams, by member. Blocks that are
  // shorter than the others (and all streams of the one-step way) are scratch memory.
  const std::vector<Slice>& stream_outputs() const { return stream_outputs_; }
  // The own block's result; `region->readable()` follows the folding (publish()).
  const Slice& result() const { return result_; }
  // Raises the readable end of what may be multicast.
  void publish();
  // Tells the owner how far our contribution to our own block may be read (staged sources); in the
  // one-step way takes our input once it is here. True: something was told.
  bool refresh_own();
  // Bytes of our own block that are final in the caller's memory, for completed ends.
  uint64_t completed() const;
  // Whether the stream of this stream arrives in the caller's memory (else it is scratch).
  bool lands(uint32_t stream) const;
  // Whether `bytes` of our contribution to member `m`, from its start, can be read.
  bool readable(Member m, uint64_t bytes) const;
  // Our input can be read whole.
  bool all_readable() const { return args_.inputs_readable(); }
  // Our contribution to member `m`, folded with those of the other ranks of this host where that is
  // done; only what is readable(). Valid until the next call. Nothing: host->refused().
  std::optional<ConstBytes> payload(Member m, size_t offset, size_t bytes);
  // Of a payload for `bytes` of a block.
  size_t contribution_bytes(size_t bytes) const {
    return host && host->wide() ? FoldRule{args_.element}.accumulator_bytes(bytes) : bytes;
  }
  // PREMUL_SUM: what the owner still has to multiply the payload with.
  double factor() const { return host ? 1 : args_.factor; }
  // Who contributes to our block, in the order of folding; one of them is this member.
  const std::vector<Member>& contributors() const { return contributors_; }
  // Which of them `m` is; nothing: none.
  std::optional<Member> contributor(Member m) const;
  // The `i`-th of the others to be asked: beginning with the next, so that owners do not all ask
  // the same one first.
  Member next_asked(uint32_t i) const {
    return contributors_[(own_.place + 1 + i) % contributors_.size()];
  }
  // reduce, at the root: where member `m`'s result goes.
  Slice destination(Member m) const { return part(args_.output, m); }

  // We take part without our input.
  bool excused() const { return own_.excused; }

  // A station's fold of a segment of our block; `of_others`: of all but our contribution, which
  // is readable(). False: it is not awaited, or has another length.
  bool place(uint32_t segment, bool of_others, ConstBytes payload);

  // Everything is here: the last step, into the caller's memory.
  void conclude();
  // The operation ends without these, of whom we may be one; set by Reductions::excuse().
  std::optional<wire::PartialResult> partial;

  // The operation is over: lets go of the caller's memory and of the machines that point into it.
  void drop_memory();

  const std::unique_ptr<StationShare> stations;
  std::optional<HostInputs> host;  // where ranks of a host fold first
  // Of what ranks of a host tell each other.
  struct {
    bool offered = false;          // our input, to them
    bool acknowledged = false;     // they know that we have read theirs
    Nanos refused_until = kNever;  // when not being able to read theirs is an error
  } inputs;
  std::optional<OneStep> one_step;  // instead of both of these
  std::optional<ReduceOwner> owner;
  std::optional<ReduceSender> sender;
  // Granting: contributors that know of what `owner` has granted, and what they knew before;
  // segments asked for in all; whether the rest waits for a window.
  struct {
    uint32_t granted = 0, before = 0;
    uint64_t asked = 0;
    bool held = false;
  } grants;
  uint64_t completed_end = 0;         // of the own block, as the caller knows
  std::vector<size_t> unasked;        // by owner: bytes sent without a grant
  struct {                            // reduce:
    uint64_t sent = 0;                // of the own block, to the root
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
    Member place = 0;     // among them
    bool staged = false;  // our contribution was not all readable when last looked at
    bool excused = false;
  } own_;
  std::vector<Slice> stream_outputs_;
  Slice result_;
};

}  // namespace mcast
