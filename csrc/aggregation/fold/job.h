// One group's work at one station: its ranks open operations, get grants for the segments of the
// station's list a window at a time, and contribute; a segment with all contributions is folded and
// sent to its owner. A result that has been sent is not kept. Pure: frames and time are the input,
// frames the output.
//
// In a tree (operation.h) a leaf takes part in an operation of a station at the top as a rank does:
// it opens the operation there, gets grants, and sends its rack's sums as partial results. If one
// of two such stations loses the other it declines the operations that they share, and ranks notify
// the rest.
//
// A member that breaks these rules ends the job (a failed Status, which the caller acts on);
// repeated contributions are counted and dropped.
//
// Memory: the constructor allocates everything, memory() bytes, except the work lists of open
// operations, which the planner makes: kMostLists bytes at most. memory_bound() includes these and
// the results queued at the transport.
#pragma once

#include <optional>
#include <vector>

#include "aggregation/fold/ageing.h"
#include "aggregation/fold/block_table.h"
#include "aggregation/fold/job_params.h"
#include "aggregation/fold/operation.h"
#include "aggregation/fold/outlet.h"
#include "base/counters.h"
#include "protocol/buffer_pool.h"
#include "protocol/rack_fold.h"
#include "wire/aggregation.h"
#include "wire/frame.h"

namespace mcast::aggregation {

class Job {
 public:
  // Most operations that may be open here; a rank opens the next one when its oldest is released.
  static constexpr uint32_t kAhead = 64;
  // All arguments but `params` outlive this object.
  Job(const JobParams& params, const Planner& planner, Outlet& out, Counters& counters);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // A rank, or a leaf, has posted an operation. `hash`: its descriptor's, as in the frame.
  Status on_open(Member from, Sequence sequence, uint32_t hash, const wire::AggOpen& open,
                 Nanos now);
  // A contribution; data.segment is the number in the list.
  Status on_data(Member from, Sequence sequence, uint32_t hash, const wire::ReduceData& data,
                 Nanos now);
  // A leaf's sum of its rack has arrived.
  Status on_sum(Member from, Sequence sequence, uint32_t hash, const wire::AggResult& sum,
                Nanos now);
  // At a leaf: a station at the top accepts entries of its list below `end`.
  Status on_grant(Member from, Sequence sequence, uint32_t end);
  // A rank, or another station, reports that the tree does not fold the operation.
  void on_decline(Sequence sequence, const std::string& why);
  // A rank that has opened the operation reports that it ends without some ranks.
  Status on_partial(Member from, Sequence sequence, uint32_t hash,
                    const wire::PartialResult& partial);
  // A rank's contributions will be missing: no more segments are granted.
  void stop_granting() { stopped_ = true; }
  // Another station of the tree cannot be reached any more.
  void lose(Member station);

  // Sends the results that owners can take now, grants, and reports idle segments.
  void advance(Nanos now);
  // Next time at which advance() has work without another event.
  Nanos deadline() const { return ageing_.next(); }

  // Bytes allocated by the constructor.
  size_t memory() const;
  // Bytes of kMostLists that are still free for lists.
  size_t list_room() const;
  // The wait of the oldest operation; nothing: no operation is open.
  struct Waiting {
    Sequence sequence;
    wire::AggWait wait;
  };
  std::optional<Waiting> waiting(Nanos now);
  uint32_t operations() const { return static_cast<uint32_t>(live_.size()); }
  // Number of segments being folded, or whose results could not be sent.
  uint32_t blocks() const { return table_.size(); }

 private:
  Operation* find(Sequence sequence);
  Operation& start(Sequence sequence, const wire::AggOpen& open);
  // For an operation that is not live: returns true if a rank has opened it once.
  bool is_over(Sequence sequence) const;
  // The least sequence number that `from` may open next.
  uint64_t& expects(Member from);
  void finish_if_done(Operation& op);
  // The reason why the contribution is not allowed; "": it is.
  const char* fault_of(const Operation& op, Member from, const wire::ReduceData& data) const;
  BlockRecord* block_of(const Operation& op, const ListEntry& entry, uint32_t number, Nanos now);

  // Returns false if one of the excused contributors has contributed.
  bool excuse(const Operation& op, RackFold& fold) const;
  bool excuse_blocks(const Operation& op, Member owner);

  void decline(Operation& op, Status why);
  void tell_declined(const Operation& op, Member to, uint32_t hash);
  // Returns false if the result cannot be sent now.
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

  BufferPool pool_;  // for early contributions
  struct {
    BufferPool sums;               // accumulators of all racks but the first
    std::vector<Member> stations;  // to which sums have been sent
    std::vector<Member> lost;
  } tree_;
  std::vector<std::byte> accumulators_;  // by place; twice a segment for 16-bit floats
  std::vector<std::byte> result_;        // of the segment being sent
  std::vector<RackFold> folds_;          // by place
  std::vector<uint32_t> free_;           // free places
  BlockTable table_;
  Ageing ageing_;

  std::vector<Operation> operations_;
  std::vector<Operation*> idle_;   // of these, operations that no rank has opened
  std::vector<Operation*> live_;   // the others, by sequence
  std::vector<uint64_t> expects_;  // by rank, then by station of the tree
  uint32_t outstanding_ = 0;       // segments, of all operations
  size_t queued_ = 0;              // bytes of results at the transport, at least
  bool stopped_ = false;
};

}  // namespace mcast::aggregation
