// GroupCore: one group on one lane, as a state machine. It keeps the operations in flight, passes
// every datagram and frame to the part that handles it, and runs the timers. It uses no socket, no
// thread and no clock, so the same object runs under the simulator and under a lane thread.
//
// Threads: one (the lane's), except readers of the statistics in `counters`. Order of calls:
// start_probe or adopt_path, then any of on_*/post/progress. Results are queued; user code (`done`
// callbacks) runs in deliver() only, which the lane calls after it has progressed its groups.
//
//   part              task                                                 file
//   GroupContext      operations, path, sending                            group_context.h
//   SourceAuth        checks that a block is the one that its root sent    source_auth.h
//   SmallOperations   sends small operations; tracks positions of roots    small_operations.h
//   Reception         puts datagrams into memory or staging                reception.h
//   Placing           streams that a device writes into memory             movements/placing.h
//   Repair            lost chunks: requests, donors, reads, early repair   movements/repair.h
//   Multicast         sends this member's block by multicast; credit       movements/multicast.h
//   Movement          how the data of operations moves, one of:            movement.h
//     MulticastStreams  blocks by multicast: the three above     movements/multicast_streams.h
//     UnicastRing       blocks around a ring by unicast                    movements/unicast_ring.h
//     Reductions        contributions, grants, results                     movements/reductions.h
//     Exchanges         blocks from one rank to another                    movements/exchanges.h
//     NoData            no data: the operation only waits for all members  movements/no_data.h
//   Messages          sends and receives between two ranks                 messages.h
//   ExternalFold      segments that a product outside of the core folds    external_fold.h
//   CompletionReports operations complete here and everywhere              completion_reports.h
//   Membership        members that are alive, left, gone                   membership.h
//   LateInquiry       finds the ranks that have not made a call            late_inquiry.h
//   PartialReductions reductions that complete without late ranks          partial_reductions.h
//   PathSwitch        whether multicast reaches all members: at creation   path_probe.h
//                     and later; to the ring and back                      path_switch.h
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective/aggregation_report.h"
#include "collective/completion_reports.h"
#include "collective/external_fold.h"
#include "collective/group_context.h"
#include "collective/late_inquiry.h"
#include "collective/membership.h"
#include "collective/messages.h"
#include "collective/movements/exchanges.h"
#include "collective/movements/multicast.h"
#include "collective/movements/multicast_streams.h"
#include "collective/movements/no_data.h"
#include "collective/movements/placing.h"
#include "collective/movements/reductions.h"
#include "collective/movements/repair.h"
#include "collective/movements/unicast_ring.h"
#include "collective/partial_reductions.h"
#include "collective/path_switch.h"
#include "collective/reception.h"
#include "collective/small_operations.h"
#include "collective/source_auth.h"
#include "protocol/early_frames.h"

namespace mcast {

class GroupCore {
 public:
  using Path = mcast::Path;

  GroupCore(GroupParams params, Port& port, Counters& counters);

  // Begins the reach probe; `ready` runs once, with the path or the reason of failure.
  void start_probe(Nanos now, std::function<void(const Status&)> ready);
  // Instead of a probe: takes the result of the group's other lane. `no_multicast`: as in
  // GroupPath.
  void adopt_path(Path path, const std::string& reason, bool no_multicast = false);
  // Takes the path from a member that has failed since: the group had been created, so it is open
  // here, too.
  void learn_path(Path path, Nanos now);
  Path path() const { return g_.path.first; }
  const std::string& path_reason() const { return g_.path.reason; }
  bool no_multicast() const { return g_.path.no_multicast; }
  // Before the path is decided: names the members that delay the decision, as far as known here.
  std::string probe_text() const { return path_.creation().text(); }

  // Posts op `post.sequence` (consecutive from params.first_sequence). Always ends in exactly one
  // call of post.done, in deliver().
  void post(Post post, Nanos now);
  // Post::delegated has become true, before or after the post.
  void arrived(Sequence sequence, Nanos now);

  // Posts a send or a receive. Always ends in exactly one call of post.done, in deliver().
  void post_message(MessagePost post, Nanos now);

  // A datagram whose header parsed and whose tag and lane belong to this group; not yet verified.
  DatagramVerdict on_datagram(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now);
  // Like on_datagram(), for a group with a guard.
  DatagramVerdict on_guarded(const wire::GuardedHeader& header, ConstBytes datagram, Nanos now);
  // As in DatagramSink. on_placed() returns the bytes of the chunks, including headers.
  size_t on_placed(const SliceName& name, uint32_t word, uint64_t bits, Nanos now);
  void on_retired(const SliceName& name, const SliceCounts& counts, Nanos now);
  // A frame of this group from `from`; header parsed and checksum verified.
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  // `peer`: a member or a station.
  void on_peer_down(Member peer, const Status& why, bool graceful, Nanos now);
  // The bytes that Port::read() requested.
  void on_read(uint32_t token, ConstBytes bytes, Nanos now);

  // Another group of the lane has left the multicast address that both share, because it is
  // flooded.
  void on_flood(Nanos now);

  // Timers and sending. `drained`: the transport's receive side was seen empty. Returns whether
  // more can be done at once (something was sent and more is waiting).
  bool progress(Nanos now, bool drained);
  // When progress() must be called again at the latest.
  Nanos deadline(Nanos now) const;
  // Runs the callbacks of operations that have ended since the last call. They may post. Returns
  // true if an operation that they posted has already ended: its callback runs in the next call.
  bool deliver();

  // Fails all operations and informs the other members. The first reason wins.
  void fail(const Status& why, Member culprit, Nanos now);
  // Like fail(), at time `when`, unless a reason is found before. The earliest of several wins.
  void fail_later(const Status& why, Nanos when) { g_.fail_later(why, when); }
  // Fails now if fail_later() has scheduled a failure.
  void fail_early(Nanos now);
  // Runs once, at the first failure, before the operations are failed.
  void set_failure_listener(std::function<void(const Status&)> listener) {
    g_.on_failure = std::move(listener);
  }
  // Runs when the group changes its path after creation.
  void set_path_listener(
      std::function<void(const std::string& path, const std::string& why)> listener) {
    path_.set_listener(std::move(listener));
  }
  AggregationReport aggregation_report(Nanos now) const;
  // For the product that made it (GroupParams::fold). Null: ranks fold everything.
  ExternalFold* fold() const { return g_.fold; }
  bool failed() const { return g_.failed(); }
  const Status& failure() const { return g_.failure(); }

  // This member posts nothing more. Until leave() it waits for the confirmation that all its
  // operations are complete everywhere; the group fails at the latest time limit of these
  // operations.
  void close(Nanos now);
  // Call once quiet() is true: informs the others that this member has left.
  void leave(Nanos now);
  // The group is being destroyed: no device writes for it any more, so ended operations need not
  // wait for one.
  void abandon() { placing_.abandon(); }
  // True once every operation this member started has been confirmed everywhere; the group can then
  // be destroyed.
  bool quiet() const;
  // True while progress() only needs to be called for events and at deadline(): no work could
  // continue without an event, for example once a connection accepts more data.
  bool idle() const;
  // True if everything that can be confirmed is confirmed: the oldest unfinished operation, and all
  // operations behind it, wait for other ranks.
  bool confirmed_so_far() const;
  // Describes the oldest unfinished operation for errors; empty if there is none.
  std::string unfinished_text(Nanos now) const;

  // True while large operations move data. Busy groups of a lane share its receive budget.
  bool busy() const { return g_.large_in_flight > 0; }
  // Bytes of multicast that may queue here before any sender must wait for this member. 0 unless
  // much more than that is still to come.
  size_t headroom() const { return reception_.headroom(); }
  // Bytes staged for operations that are not posted here; at most params().staging.
  size_t staged_bytes() const { return reception_.staged_bytes(); }
  // Highest value of staged_bytes() since the last call.
  size_t take_staged_peak() { return reception_.take_staged_peak(); }
  uint32_t unfinished() const { return g_.unfinished; }
  // Number of unfinished operations, operations deferred by a pending cut-over, and unfinished
  // messages.
  size_t waiting() const { return g_.unfinished + g_.deferred.size() + messages_.unfinished(); }
  Sequence next_sequence() const { return g_.next_sequence(); }
  // Operations whose state machines still exist: neither settled nor complete everywhere.
  size_t unsettled() const { return g_.ops.unsettled(); }
  // Visits to operations so far; measures the cost of driving the group.
  uint64_t visits() const { return g_.ops.visits(); }
  const GroupParams& params() const { return g_.params; }
  // By member: repair payload bytes received from it, and sent to it. Lane thread only.
  const std::vector<std::pair<uint64_t, uint64_t>>& repairs() const { return repair_.bytes(); }

 private:
  // A datagram whose header is known to belong to this group. `bytes`: size of the whole datagram.
  template <typename Verifier>
  DatagramVerdict take_datagram(const wire::DatagramHeader& header, Verifier& datagram,
                                size_t bytes, Nanos now);
  using Frame = wire::FrameHeader;
  using Handler = void (*)(GroupCore&, const Frame&, ConstBytes, Nanos);
  struct Timer {
    Nanos (*when)(const GroupCore&);
    void (*act)(GroupCore&, Nanos now, bool drained);
  };

  // group_core.cpp: an operation from its post to its release
  bool may_admit(const Post& post) const;
  void admit(Post post, Nanos now);
  void admit_deferred(Nanos now);
  Movements movements_of(const Post& post, const Plan& plan);
  Chunk ahead_of(const Operation& op) const;
  bool may_start(const Operation& op);
  void start(Operation& op, Nanos now);
  void check_complete(Operation& op, Nanos now);
  void advance_complete(Nanos now);
  void finish(Operation& op, const Status& status, Nanos now);
  void release(Sequence end, Nanos now);

  // group_turn.cpp: the work of progress(), and when it is next due
  bool active() const;
  bool visit(Operation& op, Nanos now, bool drained);
  void reschedule(Operation& op);
  void settle(Nanos now);
  static std::span<const Timer> timers();

  // group_dispatch.cpp: finds the part that handles a datagram or frame
  static Handler handler(wire::FrameType type);
  template <auto kMovement>
  static void to_movement(GroupCore& core, const Frame& header, ConstBytes body, Nanos now);
  Operation* operation_of(const Frame& header, ConstBytes body, Movement* movement = nullptr);
  void replay_early(Sequence sequence, Nanos now);
  void on_leave(const Frame& header);
  void on_credit(const Frame& header, ConstBytes body);
  void on_describe(const Frame& header, ConstBytes body);

  // group_failure.cpp
  void on_abort(ConstBytes body, Sequence released, Nanos now);
  void answer_failed(const Frame& header);
  void tell_failure(Nanos now);

  GroupContext g_;
  SourceAuth sources_;
  SmallOperations small_;
  Membership membership_;
  PathSwitch path_;
  Placing placing_;
  Reception reception_;
  Repair repair_;
  Multicast multicast_;
  UnaskedAccount unasked_;
  IngressShare ingress_;
  MulticastStreams streams_;
  UnicastRing ring_;
  Reductions reductions_;
  Exchanges exchanges_;
  NoData no_data_;
  Messages messages_;
  std::unique_ptr<ExternalFold> fold_;
  LateInquiry inquiry_;
  PartialReductions partial_;
  EarlyFrames early_;
  CompletionReports completion_;
};

}  // namespace mcast
