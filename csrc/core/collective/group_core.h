// GroupCore: one group on one lane, as a state machine. It keeps the operations in flight, hands
// every datagram and frame to the part that it is for, and runs the timers. No socket, no thread,
// no clock: the same object runs under the simulator and under a lane thread.
//
// Threads: one (the lane's), except stats readers of `counters`. Calls come in the order:
// start_probe or adopt_path, then any of on_*/post/progress. Results are queued; user code (`done`
// callbacks) runs in deliver() only, which the lane calls after its turn.
//
//   part              what it does                                          file
//   GroupContext      the operations, the path, the way out                 group_context.h
//   SourceAuth        whether a block is the one that its root has sent     source_auth.h
//   SmallOperations   small ones until they are sent; how far roots are     small_operations.h
//   Reception         datagrams into memory or staging                      reception.h
//   Placing           streams that a device writes into memory              placing.h
//   Repair            losses: asking, donating, reads, before the post      repair.h
//   Multicast, Ring   the own block out, by either path; credit             multicast.h, ring.h
//   Reductions        contributions, grants, results                        reductions.h
//   Exchanges         blocks from one rank to one other                     exchanges.h
//   Messages          what one rank sends to one other, beside operations    messages.h
//   Stations          segments that stations of aggregators fold; which     stations.h
//                     stations, from which operation on                     roster_change.h
//   CompletionReports what is complete here, and everywhere                 completion_reports.h
//   Membership        who lives, left, is gone                              membership.h
//   LateInquiry       who has not made the call                             late_inquiry.h
//   Excuses           reductions that end without late ranks                excuses.h
//   PathSwitch        does multicast reach everybody: at the creation,      path_probe.h
//                     and later; to the ring and back                       path_switch.h
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collective/aggregation_report.h"
#include "collective/completion_reports.h"
#include "collective/exchanges.h"
#include "collective/excuses.h"
#include "collective/group_context.h"
#include "collective/late_inquiry.h"
#include "collective/membership.h"
#include "collective/messages.h"
#include "collective/multicast.h"
#include "collective/path_switch.h"
#include "collective/placing.h"
#include "collective/reception.h"
#include "collective/reductions.h"
#include "collective/repair.h"
#include "collective/ring.h"
#include "collective/small_operations.h"
#include "collective/source_auth.h"
#include "collective/stations.h"
#include "protocol/early_frames.h"

namespace mcast {

class GroupCore {
 public:
  using Path = mcast::Path;

  GroupCore(GroupParams params, Port& port, Counters& counters);

  // Begins the reach probe; `ready` runs once, with the path or the reason of failure.
  void start_probe(Nanos now, std::function<void(const Status&)> ready);
  // Instead of a probe: what the group's other lane found out. `no_multicast`: as of GroupPath.
  void adopt_path(Path path, const std::string& reason, bool no_multicast = false);
  // What somebody knows who has failed since: the group was made before, and is made here, too.
  void learn_path(Path path, Nanos now);
  Path path() const { return g_.path.first; }
  const std::string& path_reason() const { return g_.path.reason; }
  bool no_multicast() const { return g_.path.no_multicast; }
  // Before the path is decided: who keeps it open, as far as this member can tell.
  std::string probe_text() const { return path_.creation().text(); }

  // Stations without a roster: the same at all members, before the first operation of the set.
  // at[i]: where set.stations[i] is.
  void use_stations(const StationSet& set, std::span<const StreamAddress> at);

  // Posts op `post.sequence` (consecutive from params.first_sequence). Always ends in exactly one
  // call of post.done, in deliver().
  void post(Post post, Nanos now);
  // Post::delegated has become true; before or after the post.
  void arrived(Sequence sequence, Nanos now);

  // A send or a receive. Always ends in exactly one call of post.done, in deliver().
  void post_message(MessagePost post, Nanos now);

  // A datagram whose header parsed and whose tag and lane are ours; not yet verified.
  Judged on_datagram(const wire::DatagramHeader& header, ConstBytes datagram, Nanos now);
  // The same where the group has a guard.
  Judged on_guarded(const wire::GuardedHeader& header, ConstBytes datagram, Nanos now);
  // As of DatagramSink; on_placed() returns the bytes of the chunks, headers included.
  size_t on_placed(const SliceName& name, uint32_t word, uint64_t bits, Nanos now);
  void on_retired(const SliceName& name, const SliceCounts& counts, Nanos now);
  // A frame for this group from `from`, header parsed and checksum verified.
  void on_frame(const wire::FrameHeader& header, ConstBytes body, Nanos now);
  // `peer`: a member or a station.
  void on_peer_down(Member peer, const Status& why, bool graceful, Nanos now);
  // The bytes that Port::read() asked for.
  void on_read(uint32_t token, ConstBytes bytes, Nanos now);

  // Another group of the lane has left the multicast address of both, which is flooded.
  void on_flood(Nanos now);

  // Timers and sending. `drained`: the transport's receive side was seen empty. Returns whether
  // more can be done at once (something was sent and more is waiting).
  bool progress(Nanos now, bool drained);
  // When progress() must be called again at the latest.
  Nanos deadline(Nanos now) const;
  // Runs the callbacks of operations that have ended since the last time. They may post; true: what
  // they posted has ended, too, and waits for the next time.
  bool deliver();

  // Fails everything, tells the others. First reason wins.
  void fail(const Status& why, Member culprit, Nanos now);
  // As fail(), at `when`, unless a reason has been found until then. Of several the earliest.
  void fail_later(const Status& why, Nanos when) { g_.fail_later(why, when); }
  // What fail_later() was to do is done now, if anything.
  void fail_early(Nanos now);
  // Runs once, at the first failure, before the operations learn of it.
  void set_failure_listener(std::function<void(const Status&)> listener) {
    g_.on_failure = std::move(listener);
  }
  // Runs when the group changes its path after creation.
  void set_path_listener(
      std::function<void(const std::string& path, const std::string& why)> listener) {
    path_.set_listener(std::move(listener));
  }
  // Of the reduce lane, at the top: the stations that fold for the group from some operation on, as
  // far as all ranks reach them; all that are admitted now.
  void propose_stations(std::vector<wire::StationEntry> stations, Nanos now);
  const StationTable& stations() const { return g_.stations; }
  AggregationReport aggregation_report(Nanos now) const;
  void set_roster_listener(RosterEvents events) {
    stations_.roster().set_listener(std::move(events));
  }
  bool failed() const { return g_.failed(); }
  const Status& failure() const { return g_.failure(); }

  // This member posts nothing more. Until it leaves it needs the others for the word that all that
  // it has posted is complete everywhere, and at the last time limit of that the group fails.
  void close(Nanos now);
  // Once quiet(): says that this member has left.
  void leave(Nanos now);
  // The group goes: no device writes for it any more, and what ended waits for none.
  void abandon() { placing_.abandon(); }
  // Nothing of ours is unconfirmed: the group may be dropped.
  bool quiet() const;
  // True while only events and deadline() give progress() something to do: nothing is under way
  // that could go on by itself, for example once a connection takes more.
  bool idle() const;
  // What can be confirmed is: the oldest operation that is not over waits for other ranks, and
  // those behind it with it.
  bool confirmed_so_far() const;
  // The oldest operation that is not over, as in errors; empty if there is none.
  std::string unfinished_text(Nanos now) const;

  // Moves large operations now: groups of a lane that do share its budget.
  bool busy() const { return g_.large_in_flight > 0; }
  // Bytes of multicast that may pile up before anybody has to wait for this member to take them; 0
  // unless much more than that is still to come.
  size_t headroom() const { return reception_.headroom(); }
  // Bytes that are kept of operations that are not posted here; at most params().staging.
  size_t staged_bytes() const { return reception_.staged_bytes(); }
  // Most of them at once since this was asked last.
  size_t take_staged_peak() { return reception_.take_staged_peak(); }
  uint32_t unfinished() const { return g_.unfinished; }
  // Those, the ones that wait for a line, and messages that are not over.
  size_t waiting() const { return g_.unfinished + g_.deferred.size() + messages_.unfinished(); }
  Sequence next_sequence() const { return g_.next_sequence(); }
  // Operations whose machines are here: neither settled nor complete everywhere.
  size_t unsettled() const { return g_.ops.unsettled(); }
  // Visits to operations so far: what driving the group has cost.
  uint64_t visits() const { return g_.ops.visits(); }
  const GroupParams& params() const { return g_.params; }
  // Per member: repair payload bytes received from it, sent to it. Lane thread only.
  const std::vector<std::pair<uint64_t, uint64_t>>& repairs() const { return repair_.bytes(); }

 private:
  // One whose header is known to be for this group; `bytes`: of the whole datagram.
  template <typename Verifier>
  Judged take_datagram(const wire::DatagramHeader& header, Verifier& datagram, size_t bytes,
                       Nanos now);
  using Frame = wire::FrameHeader;
  using Handler = void (*)(GroupCore&, const Frame&, ConstBytes, Nanos);
  struct Timer {
    Nanos (*when)(const GroupCore&);
    void (*act)(GroupCore&, Nanos now, bool drained);
  };

  // group_core.cpp: an operation from the post to the release
  bool may_admit(const Post& post) const;
  void admit(Post post, Nanos now);
  void admit_deferred(Nanos now);
  bool may_start(const Operation& op);
  void start(Operation& op, Nanos now);
  void start_blocks(Operation& op, Nanos now);
  void check_complete(Operation& op, Nanos now);
  void advance_complete(Nanos now);
  void finish(Operation& op, const Status& status, Nanos now);
  void release(Sequence end, Nanos now);

  // group_turn.cpp: what happens in a turn, and when the next is due
  bool active() const;
  bool visit(Operation& op, Nanos now, bool drained);
  void reschedule(Operation& op);
  bool settles(const Operation& op) const;
  Nanos op_deadline(const Operation& op) const;
  void settle(Nanos now);
  static std::span<const Timer> timers();

  // group_dispatch.cpp: which part a datagram or frame is for
  static Handler handler(wire::FrameType type);
  Operation* operation_of(const Frame& header, ConstBytes body);
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
  Ring ring_;
  Reductions reductions_;
  Exchanges exchanges_;
  Messages messages_;
  Stations stations_;
  LateInquiry inquiry_;
  Excuses excuses_;
  EarlyFrames early_;
  CompletionReports completion_;
};

}  // namespace mcast
