// GroupCore: one group on one lane, as a state machine. It composes the protocol machines of all
// operations in flight, answers datagrams and frames, and sends through a Port. No socket, no
// thread, no clock: the same object runs under the simulator and under a lane thread.
//
// Threads: one (the lane's), except stats readers of `counters`. Calls come in the order:
// start_probe, then any of on_*/post/progress. User code (`done` callbacks) runs inside progress(),
// post() and fail().
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/counters.h"
#include "base/trace.h"
#include "collective/operation.h"
#include "collective/operation_queue.h"
#include "collective/port.h"
#include "protocol/completion.h"
#include "protocol/eager_window.h"
#include "protocol/ingress_share.h"
#include "protocol/liveness.h"
#include "protocol/probe.h"
#include "protocol/reachability_monitor.h"
#include "protocol/reduce_early.h"
#include "protocol/repair_queue.h"
#include "protocol/sent_announcer.h"
#include "protocol/sent_tracker.h"
#include "protocol/staging.h"
#include "protocol/tree.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast {

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
  bool try_multicast = true;       // false: straight to the ring
  bool require_multicast = false;  // a failed probe fails the group
  LanePolicy policy = LanePolicy::kFair;
  // Bytes that the process's multicast lane has received: the reduce lane yields to them. May be
  // null.
  std::shared_ptr<const std::atomic<uint64_t>> multicast_arrived;
  std::shared_ptr<Trace> trace;   // may be null
  std::string multicast_problem;  // not empty: this member cannot multicast, and why
};

class GroupCore {
 public:
  GroupCore(GroupParams params, Port& port, Counters& counters);

  // Begins the reach probe; `ready` runs once, with the path or the reason of failure.
  void start_probe(Nanos now, std::function<void(const Status&)> ready);
  enum class Path : uint8_t { kUnknown, kMulticast, kRing, kLocal };
  // Instead of a probe: what the group's other lane found out.
  void adopt_path(Path path, const std::string& reason);
  Path path() const { return path_; }
  const std::string& path_reason() const { return path_reason_; }

  // Posts op `post.sequence` (consecutive from params.first_sequence). Always ends in exactly one
  // call of post.done.
  void post(Post post, Nanos now);

  // Post::delegated has become true; before or after the post.
  void arrived(Sequence sequence, Nanos now);
  // As fail(), at `when`, unless a reason has been found until then.
  void fail_later(const Status& why, Nanos when);

  // A datagram whose header parsed and whose tag and lane are ours; not yet verified.
  void on_datagram(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now);
  // A frame for this group from `from`, header parsed and checksum verified.
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  void on_peer_down(Member peer, const Status& why, bool graceful, Nanos now);

  // Timers and sending. `drained`: the transport's receive side was seen empty. Returns whether
  // more can be done at once (something was sent and more is waiting).
  bool progress(Nanos now, bool drained);
  // When progress() must be called again at the latest.
  Nanos deadline(Nanos now) const;

  // Fails everything, tells the others. First reason wins.
  void fail(const Status& why, Member culprit, Nanos now);
  // Runs once, at the first failure, before the operations learn of it.
  void set_failure_listener(std::function<void(const Status&)> listener) {
    on_failure_ = std::move(listener);
  }
  // Runs when the group changes its path after creation.
  void set_path_listener(
      std::function<void(const std::string& path, const std::string& why)> listener) {
    on_path_change_ = std::move(listener);
  }
  bool failed() const { return !failure_.ok(); }
  const Status& failure() const { return failure_; }

  // Says that this member posts nothing more.
  void leave(Nanos now);
  // Nothing of ours is unconfirmed: the group may be dropped.
  bool quiet() const;
  // What can be confirmed is: the oldest operation that is not over waits for other ranks, and
  // those behind it with it.
  bool confirmed_so_far() const;
  // The oldest operation that is not over, as in errors; empty if there is none.
  std::string unfinished_text(Nanos now) const;
  // Before the path is decided: who keeps it open, as far as this member can tell.
  std::string probe_text() const;

  // The bytes that Port::read() asked for.
  void on_read(uint32_t token, ConstBytes bytes, Nanos now);

  bool busy() const { return large_in_flight_ > 0; }
  // Bytes of multicast that may pile up before anybody has to wait for this member to take them; 0
  // unless much more than that is still to come.
  size_t headroom() const;
  uint32_t unfinished() const { return unfinished_; }
  // Those, and the ones that wait for a change of path.
  size_t waiting() const { return unfinished_ + deferred_.size(); }
  Sequence next_sequence() const { return ops_.next() + static_cast<Sequence>(deferred_.size()); }
  // Operations whose machines are here: neither settled nor complete everywhere.
  size_t unsettled() const { return ops_.unsettled(); }
  // Visits to operations so far: what driving the group has cost.
  uint64_t visits() const { return visits_; }
  const GroupParams& params() const { return params_; }
  // Per member: repair payload bytes received from it, sent to it. Lane thread only.
  const std::vector<std::pair<uint64_t, uint64_t>>& repairs() const { return repairs_; }

 private:
  using Frame = wire::FrameHeader;
  // Operations that another rank may be ahead of this one: memory for what comes early.
  static constexpr Sequence kFurthestAhead = 1u << 20;
  static constexpr int kRounds = 4;                   // of visits in one poll
  static constexpr Chunk kBatchesPerPoll = 4;         // sent, then the receive side gets its turn
  static constexpr size_t kFetchPayload = 60u << 10;  // bytes of repair per frame

  // group_core.cpp: life of an operation
  Operation* find(Sequence sequence) { return ops_.find(sequence); }
  void admit(Post post, Nanos now);
  void admit_deferred(Nanos now);
  bool may_start(const Operation& op, Nanos now);
  void start_streams(Operation& op, Nanos now);
  void start_credit(Operation& op);
  void replay_early_credit(Operation& op);
  void replay_staged(Operation& op, Nanos now);
  bool visit(Operation& op, Nanos now, bool drained);
  // Something is under way that a dead member would hold up.
  bool active() const { return !ops_.empty() || probe_ || check_ || frozen_; }
  void reschedule(Operation& op);
  Nanos op_deadline(const Operation& op) const;
  bool settles(const Operation& op) const;
  void check_local(Operation& op, Nanos now);
  void advance_complete(Nanos now);
  void finish(Operation& op, const Status& status, Nanos now);
  void record(const Operation& op, const Status& status, Nanos now);
  void release(Sequence end, Nanos now);

  // group_receive.cpp: datagrams and repair data
  void on_data(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now);
  void on_other_data(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now);
  void hear_sent(const wire::DatagramHeader& header, Nanos now);
  bool place(Operation& op, uint32_t slot, Chunk chunk, ConstBytes payload, bool live, Nanos now);
  void stream_complete(Operation& op, Nanos now);
  void stage(Sequence sequence, Staging::Key key, uint32_t descriptor, bool live,
             ConstBytes payload);
  // The peer's descriptor of an operation that is posted here; false, and both told: not ours.
  bool agrees(Member peer, Sequence sequence, uint32_t descriptor);
  void on_position(Sequence sequence, Member root, uint32_t descriptor, Chunk sent, Nanos now);
  void on_fetch(const Frame& header, ConstBytes body, Nanos now);
  void on_fetch_data(const Frame& header, ConstBytes body, Nanos now);
  bool accept_repair(Operation& op, uint32_t slot, Member donor, uint32_t id, ChunkRange range,
                     ConstBytes payload, Nanos now);
  void on_not_have(const Frame& header, ConstBytes body, Nanos now);
  void donate(Operation& op, uint32_t slot, Member asker, uint32_t id,
              const std::vector<ChunkRange>& ranges);
  void send_fetch_data(Operation& op, uint32_t slot, Member asker, uint32_t id, ChunkRange range);
  void say_not_have(Sequence sequence, Member asker, uint32_t id, Member root,
                    std::span<const ChunkRange> ranges, bool coming);
  void detect_losses(Operation& op, Nanos now, bool drained);
  void drive_fetch(Operation& op, Nanos now);

  // group_read.cpp: repairs by one-sided reads
  std::vector<ChunkRange> grant_reads(Operation& op, uint32_t slot, Member asker, uint32_t id,
                                      const std::vector<ChunkRange>& ranges);
  bool reading(const Operation& op) const;
  void on_fetch_grant(const Frame& header, ConstBytes body, Nanos now);
  void drive_reads();

  // group_small.cpp: small operations of all roots, over the operations
  bool keep_small(Operation& op);
  void keep_waiting(Nanos now);
  bool send_small(Nanos now);
  Operation* revive(Sequence sequence);
  void note_sent(Member root, Sequence end, Nanos now);
  void learn_sent(Operation& op, Nanos now);
  void announce_sent(Nanos now);
  void pass_on_sent();
  void on_sent_frame(const Frame& header, ConstBytes body, Nanos now);
  void fetch_early(Nanos now);
  void on_early_fetch(const Frame& header, ConstBytes body);
  void send_early(Sequence sequence, Member asker);
  void on_early_data(const Frame& header, ConstBytes body, Nanos now);

  // group_send.cpp: the own stream
  bool pump(Operation& op, Nanos now);
  bool my_turn(Operation& op, Nanos now);
  void keep_in_step(Operation& op, Nanos now);
  bool send_chunk(Operation& op, Chunk chunk);
  void announce(Operation& op, Nanos now);
  void pass_on_position(Operation& op, uint32_t slot, Chunk sent, Member from);
  void on_position_frame(const Frame& header, ConstBytes body, Nanos now);
  void serve_repairs(Operation& op, Nanos now);
  void serve_parked();

  // group_probe.cpp: the reach probe
  void drive_probe(Nanos now);
  void drive_joining(Nanos now);
  void all_joined(ReachProbe::Reach reach, const std::string& why, Nanos now);
  void pass_start(uint32_t argument, const std::string& text);
  void on_probe_frame(const Frame& header, ConstBytes body, Nanos now);
  void on_probe_done(bool multicast, const std::string& why, Nanos now);
  Member first_child() const { return static_cast<Member>(tree_.first_child(self_)); }
  ReachProbe::Here child_met() const;
  std::string absent_parent() const;

  // group_control.cpp, group_failure.cpp: credit, completion, liveness, failure
  void report_credit(Operation& op, bool first);
  void flow_credit(Operation& op, Nanos now);
  void route_limits(Operation& op, const std::vector<wire::CreditEntry>& entries, Nanos now);
  void send_credit(Member to, wire::FrameType type, const Operation& op,
                   std::span<const wire::CreditEntry> entries);
  bool early_allowed(const Frame& header, Nanos now);
  void on_credit(const Frame& header, ConstBytes body, Nanos now);
  void on_limit(const Frame& header, ConstBytes body, Nanos now);
  void on_complete(const Frame& header, ConstBytes body, Nanos now);
  void on_released(Sequence end, Nanos now);
  void report_complete(Nanos now);
  void on_abort(const wire::AbortNotice& notice, Sequence released, Nanos now);
  void on_describe(const Frame& header, ConstBytes body, Nanos now);
  void describe_to(Member to, Sequence sequence);
  void mismatch(Sequence sequence, Member other, const std::string& theirs, Nanos now);
  void drive_liveness(Nanos now, bool drained);
  void check_deadlines(Nanos now);
  void inquire(const Operation& op, Nanos now);
  void on_late(Sequence sequence, const std::string& what, Nanos now);
  void on_where(const Frame& header, Nanos now);
  void name_late(Nanos now);

  // path_check.cpp: the reach probe, again
  ReachProbe::Params probe_params() const;
  bool by_ring(Sequence sequence) const;
  bool on_ring() const { return turns_.empty() ? path_ == Path::kRing : turns_.back().ring; }
  void check_later(Nanos now);
  void drive_path(Nanos now);
  void start_check(Nanos now, const std::string& why);
  void begin_round(uint32_t round, Nanos now);
  void drive_check(Nanos now);
  void end_round(bool heard, const std::string& why, Nanos now);
  void on_check_frame(const Frame& header, ConstBytes body, Nanos now);

  // path_switch.cpp: from multicast to the ring in mid-life, and back
  void judge_hearing(const Operation& op, Nanos now);
  void suspect_path(const std::string& why, Nanos now);
  void begin_switch(bool to_ring, const std::string& why, Nanos now);
  void freeze(bool to_ring, const std::string& why, Nanos now);
  void switch_answered(Nanos now);
  void draw_line(Sequence first_by_ring, Nanos now);
  void on_switch_frame(const Frame& header, ConstBytes body, Nanos now);

  // ring.cpp: the unicast path
  void start_ring(Operation& op, Nanos now);
  bool pump_ring(Operation& op, Nanos now);
  void on_ring_ready(const Frame& header, Nanos now);
  void on_ring_data(const Frame& header, ConstBytes body, Nanos now);

  // group_reduce.cpp: reductions
  void start_reduce(Operation& op, Nanos now);
  bool pump_reduce(Operation& op, Nanos now);
  void send_contributions(Operation& op, bool& more, Nanos now);
  void send_result(Operation& op, bool& more);
  void grant_segments(Operation& op);
  void send_grant(Operation& op);
  void offer_input(Operation& op);
  void settle_inputs(Operation& op, Nanos now);
  void contribute_own(Operation& op, bool& more);
  void contribution_progress(Operation& op, Nanos now);
  void publish_result(Operation& op);
  bool reduce_complete(const Operation& op) const;
  void on_reduce_frame(const Frame& header, ConstBytes body, Nanos now);
  void on_reduce_offer(Operation& op, const Frame& header, ConstBytes body, Nanos now);
  void on_reduce_grant(Operation& op, const Frame& header, ConstBytes body, Nanos now);
  void on_reduce_data(Operation& op, const Frame& header, ConstBytes body, Nanos now);
  void on_reduce_result(Operation& op, const Frame& header, ConstBytes body, Nanos now);
  void broke_reduce(const Frame& header, const char* what, Nanos now);
  void measure_ingress(Nanos now);

  // group_out.cpp: frames out
  void send_frame(Member to, Channel channel, wire::FrameType type, Sequence sequence,
                  uint32_t argument, ConstBytes body = {}, ConstBytes payload = {});
  // To parent and children, except `except`.
  void flood(wire::FrameType type, Sequence sequence, uint32_t argument, ConstBytes body,
             Member except);
  // `block`: of which the payload is a part, if the transport shall gather it from there.
  bool send_datagram(wire::DatagramType type, Sequence sequence, uint32_t descriptor, Chunk chunk,
                     ConstBytes payload, bool last = false, bool in_order = false,
                     const Slice* block = nullptr);
  bool is_multicast() const { return path_ == Path::kMulticast; }
  // Which operation, of which group, on which rank, how long it took and how long it might.
  std::string op_text(const Post& post, Nanos now) const;

  GroupParams params_;
  Port& port_;
  Counters& counters_;
  Member self_;
  uint32_t size_;
  Tree tree_;

  Path path_ = Path::kUnknown;
  std::string path_reason_;
  std::optional<ReachProbe> probe_;
  std::string missing_;  // who has not joined, as the top says
  std::function<void(const Status&)> ready_;

  ReduceRun::Shared reductions_;  // before the operations, which give back to it when they go
  OperationQueue ops_;
  // Released operations, until the next progress(): callers up the stack may still hold a
  // reference, since the last chunk of an operation can release it (and run user code that posts
  // the next one).
  std::vector<std::unique_ptr<Operation>> retired_;
  Chunk on_the_way_ = 0;  // what the path holds beside its queue, as the last large stream found
  std::vector<Sequence> due_;  // scratch of progress()
  uint64_t visits_ = 0;
  // Own small operations: those that wait for retransmit memory or for their data, and those that
  // are kept and not sent yet; both in order.
  std::deque<Sequence> unkept_, unsent_;
  size_t kept_bytes_ = 0;
  EagerWindow eager_;
  SentAnnouncer announcer_;
  SentTracker sent_;
  struct SentNews {
    wire::SentEntry entry;
    Member from;
  };
  std::vector<SentNews> sent_news_;  // to be passed on with the next turn
  RepairQueue parked_;
  std::vector<Nanos> repair_heard_;  // by member: when it last answered a request
  uint32_t large_in_flight_ = 0;
  uint32_t unfinished_ = 0;
  Staging staging_;
  CompletionTracker completion_;
  Liveness liveness_;
  // What arrived for ops that this rank has not posted yet; replayed at post.
  struct EarlyCredit {
    uint32_t child, hash;
    std::vector<wire::CreditEntry> entries;
  };
  std::map<Sequence, std::vector<EarlyCredit>> early_credit_;
  std::map<Sequence, std::pair<Member, wire::Descriptor>> early_describe_;
  std::map<Sequence, uint32_t> early_ring_;  // the successor's descriptor hash
  EarlyReductions early_reduce_;
  UnaskedAccount unasked_;
  IngressShare ingress_;

  Status failure_, suspicion_;
  Nanos suspicion_until_ = kNever;
  std::function<void(const Status&)> on_failure_;
  std::vector<Sequence> left_;  // by member: first op it will not post; UINT32_MAX while it stays
  std::vector<Status> gone_;    // by member: why it can no longer be reached
  bool leaving_ = false;
  // A member closed in order while we still wait: its last word may be on its way through others.
  Member departed_ = kNoMember;
  Nanos departed_until_ = kNever;
  // A member was lost while only the confirmation of finished operations was open: it never comes.
  Member lost_ = kNoMember;
  Nanos lost_until_ = kNever;

  // Deadline inquiry (op timeout): who has not posted `late_seq_`?
  Sequence late_seq_ = 0;
  Nanos late_until_ = kNever;
  bool late_asked_ = false;
  std::string late_what_;   // the operation and its limit, as its rank described them
  std::vector<int> where_;  // by member: -1 unknown, 0 not posted, 1 posted

  ReachabilityMonitor reachability_;
  bool frozen_ = false;  // a switch is being agreed: new posts wait in deferred_
  std::deque<Post> deferred_;
  // Changes of path since the creation, oldest first: operations from `from` on.
  struct PathTurn {
    Sequence from;
    bool ring;
  };
  std::vector<PathTurn> turns_;
  std::optional<ReachProbe> check_;  // a round of asking again
  uint32_t round_ = 0;
  Nanos next_check_ = kNever, check_wait_ = 0;  // at the top, while on the ring
  std::string suspicion_of_path_;
  bool to_ring_ = false;
  std::string switch_reason_;
  uint32_t switch_waiting_ = 0;
  Sequence switch_at_ = 0;
  std::function<void(const std::string& path, const std::string& why)> on_path_change_;

  // Reads that were granted: those to be posted, and those on their way by token.
  struct RepairRead {
    Sequence sequence;
    uint32_t id;
    Member donor, root;
    ChunkRange range;
    uint64_t address;
    uint32_t key;
  };
  std::deque<RepairRead> reads_waiting_;
  std::map<uint32_t, RepairRead> reads_running_;
  uint32_t next_read_ = 0;

  std::vector<std::pair<uint64_t, uint64_t>> repairs_;
  // Scratch, kept to avoid allocation.
  std::vector<ChunkRange> ranges_;
  std::vector<wire::CreditEntry> entries_;
  std::vector<std::pair<uint32_t, CreditTree::Least>> changed_;
};

}  // namespace mcast
