// One group's work at one station: its ranks open operations, are granted the segments of the
// station's list a window at a time, and contribute; what all have contributed to is folded and
// sent to the segment's owner. Nothing is kept of a result that has left. Pure: frames and time in,
// frames out.
//
// In a tree (operation.h) a leaf takes part in an operation of a station at the top as a rank does:
// it opens it there, is granted entries, and sends its rack's sums as partial results. If one of
// two such stations loses the other it declines what they have in common, and ranks tell the rest.
//
// Whoever breaks these rules ends the job (a failed Status, for the caller to act on); what comes
// twice is counted and dropped.
//
// Memory: everything is allocated by the constructor, memory() bytes, but for the work lists of
// open operations, which the planner makes: kMostLists bytes at most. With these and what the
// transport holds of results: memory_bound().
#pragma once

#include <optional>
#include <vector>

#include "aggregation/ageing.h"
#include "aggregation/block_table.h"
#include "aggregation/job_params.h"
#include "aggregation/operation.h"
#include "aggregation/outlet.h"
#include "base/counters.h"
#include "protocol/buffer_pool.h"
#include "protocol/rack_fold.h"
#include "wire/aggregation.h"
#include "wire/frame.h"

namespace mcast::aggregation {

class Job {
 public:
  // Operations that may be open here; a rank opens the next one when its oldest is released.
  static constexpr uint32_t kAhead = 64;
  // All but `params` outlive this object.
  Job(const JobParams& params, const Planner& planner, Outlet& out, Counters& counters);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // A rank, or a leaf, has posted an operation. `hash`: of its descriptor, as the frame has it.
  Status on_open(Member from, Sequence sequence, uint32_t hash, const wire::AggOpen& open,
                 Nanos now);
  // A contribution; data.segment is the number in the list.
  Status on_data(Member from, Sequence sequence, uint32_t hash, const wire::ReduceData& data,
                 Nanos now);
  // A leaf's sum of its rack.
  Status on_sum(Member from, Sequence sequence, uint32_t hash, const wire::AggResult& sum,
                Nanos now);
  // At a leaf: a station at the top takes entries of its list below `end`.
  Status on_grant(Member from, Sequence sequence, uint32_t end);
  // A rank, or another station, says that the operation is not folded by the tree.
  void on_decline(Sequence sequence, const std::string& why);
  // A rank that has opened the operation says that it ends without some ranks.
  Status on_partial(Member from, Sequence sequence, uint32_t hash,
                    const wire::PartialResult& partial);
  // A rank's contributions will be missing: nothing more is granted.
  void stop_granting() { stopped_ = true; }
  // Another station of the tree cannot be reached any more.
  void lose(Member station);

  // Sends what owners can take now, grants, tells of idle segments.
  void advance(Nanos now);
  // When advance() has something to do that no event announces.
  Nanos deadline() const { return ageing_.next(); }

  // Bytes allocated by the constructor.
  size_t memory() const;
  // Bytes that lists may still take, of kMostLists.
  size_t list_room() const;
  // What the oldest operation waits for; nothing: there is none.
  struct Waiting {
    Sequence sequence;
    wire::AggWait wait;
  };
  std::optional<Waiting> waiting(Nanos now);
  uint32_t operations() const { return static_cast<uint32_t>(live_.size()); }
  // Segments that are being folded, or whose results could not leave.
  uint32_t blocks() const { return table_.size(); }

 private:
  Operation* find(Sequence sequence);
  Operation& start(Sequence sequence, const wire::AggOpen& open);
  // Where it is not live: whether a rank has opened it once.
  bool is_over(Sequence sequence) const;
  // The least sequence that `from` may open next.
  uint64_t& expects(Member from);
  void finish_if_done(Operation& op);
  // Why the contribution may not be; "": it may.
  const char* fault_of(const Operation& op, Member from, const wire::ReduceData& data) const;
  BlockRecord* block_of(const Operation& op, const ListEntry& entry, uint32_t number, Nanos now);

  // False: one of those that are left out has contributed.
  bool excuse(const Operation& op, RackFold& fold) const;
  bool excuse_blocks(const Operation& op, Member owner);

  void decline(Operation& op, Status why);
  void tell_declined(const Operation& op, Member to, uint32_t hash);
  // False: not now.
  bool emit(Operation& op, BlockRecord& record);
  bool may_send(Member to, size_t bytes) const;
  bool send_result(Operation& op, const BlockRecord& record);
  void emit_held();
  void grant();
  void tell_granted(Operation& op);
  void send_grant(const Operation& op, Member to);
  void tell_idle(const BlockKey& key, Nanos now);
  wire::AggWait wait_of(const Operation& op, const BlockRecord& record, Nanos now) const;

  void measure_queues();
  void send(Member to, Channel channel, wire::FrameType type, const Operation& op, uint32_t hash,
            std::span<const ConstBytes> body);
  Status broke(Member from, Sequence sequence, const std::string& what);

  // job_tree.cpp: stations at the top, and leaves
  void join(Operation& op, const wire::AggOpen& open);
  bool send_sum(Operation& op, const BlockRecord& record);

  const JobParams params_;
  const Planner& planner_;
  Outlet& out_;
  Counters& counters_;
  const uint32_t lookahead_;

  BufferPool pool_;  // of contributions that are early
  struct {
    BufferPool sums;               // accumulators of racks but the first
    std::vector<Member> stations;  // that sums have gone to
    std::vector<Member> lost;
  } tree_;
  std::vector<std::byte> accumulators_;  // by place; 16-bit floats take twice a segment
  std::vector<std::byte> result_;        // of the segment that is being sent
  std::vector<RackFold> folds_;          // by place
  std::vector<uint32_t> free_;           // places
  BlockTable table_;
  Ageing ageing_;

  std::vector<Operation> operations_;
  std::vector<Operation*> idle_;   // of these, nobody has told of
  std::vector<Operation*> live_;   // the others, by sequence
  std::vector<uint64_t> expects_;  // by rank, then by station of the tree
  uint32_t outstanding_ = 0;       // segments, of all operations
  size_t queued_ = 0;              // bytes of results at the transport, at least
  bool stopped_ = false;
};

}  // namespace mcast::aggregation
