// GroupContext: what the parts of a group share. Who is in it, the operations in flight, the path
// that they take, the way out for frames and datagrams; and two notes to GroupCore, which acts on
// them at the end of the event that it handles: the group has failed, an operation may be complete.
// So no part calls back into another while it holds an operation, and none is destroyed under it.
//
// Threads: the lane's, except readers of `counters`.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "collective/group_params.h"
#include "collective/group_path.h"
#include "collective/message_link.h"
#include "collective/operation.h"
#include "collective/operation_queue.h"
#include "collective/port.h"
#include "collective/station_table.h"
#include "protocol/tree.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast {

enum class GroupState : uint8_t {
  kNew,      // the path is not decided, nobody has been asked
  kProbing,  // members join and find out whether multicast reaches them
  kOpen,
  kSwitching,  // no operation is started until all agree on a line (line.h)
  kFailed,
};

class GroupContext final : public MessageLink {
 public:
  using Frame = wire::FrameHeader;
  // Operations that another rank may be ahead of this one: memory for what comes early.
  static constexpr Sequence kFurthestAhead = 1u << 20;
  // Batches of an operation that are sent before the receive side gets its turn.
  static constexpr Chunk kBatchesPerTurn = 4;

  GroupContext(GroupParams params, Port& port, Counters& counters);

  const GroupParams params;
  Port& port;
  Counters& counters;
  const Member self;
  const uint32_t size;
  const Tree tree;
  GroupPath path;
  GroupState state = GroupState::kNew;
  std::vector<Status> gone;  // by member: why it can no longer be reached
  StationTable stations;

  ReduceRun::Shared reductions;  // before the operations, which give back to it when they go
  OperationQueue ops;
  std::deque<Post> deferred;  // posts that wait for a line or for room
  uint32_t unfinished = 0;    // operations whose result is not there
  struct {
    bool closing = false;          // this member posts nothing more, and goes when all is confirmed
    bool all_here = true;          // no member has left or is gone: all can agree on something new
    Nanos limit = 0, timeout = 0;  // the latest time limit of operations that were posted
  } leaving;
  uint32_t large_in_flight = 0;
  // Results on their way to their callbacks, which GroupCore::deliver() runs.
  std::vector<std::pair<std::function<void(const Status&)>, Status>> ended;

  Operation* find(Sequence sequence) { return ops.find(sequence); }
  // Of the next post.
  Sequence next_sequence() const { return ops.next() + static_cast<Sequence>(deferred.size()); }
  bool switching() const { return state == GroupState::kSwitching; }
  // Whether this member needs others for what it has posted: for results, and, while it closes, for
  // the word that all have theirs.
  bool needs_others() const { return unfinished > 0 || (leaving.closing && !ops.empty()); }

  // The group fails at the end of this event: the first reason wins. `culprit`: for the others.
  void fail(const Status& why, Member culprit);
  // As fail(), at `when`, unless a reason has been found until then. Of several the earliest.
  void fail_later(const Status& why, Nanos when);
  Nanos suspicion_until() const { return failure_.suspected_at; }
  // Fails if fail_later() has said so, and it is time; at kNever it always is.
  void drive_suspicion(Nanos now);
  bool failed() const { return state == GroupState::kFailed; }
  const Status& failure() const { return failure_.why; }
  Member culprit() const { return failure_.culprit; }
  // Runs once, at the failure, before the operations learn of it.
  std::function<void(const Status&)> on_failure;
  // The operation, as in errors.
  std::string op_text(const Post& post, Nanos now) const {
    return describe_failed(post, params.name, self, now);
  }
  // True once after the failure: it is to be told.
  bool take_news_of_failure() { return std::exchange(failure_.is_news, false); }

  // GroupCore looks whether it is, at the end of this event.
  void may_be_complete(const Operation& op) { maybe_complete_.noted.push_back(op.post.sequence); }
  // Whether anything has been noted in this event.
  bool has_notes() const { return !maybe_complete_.noted.empty() || failure_.is_news; }
  // Those, in the order in which they were noted. Valid until the next call.
  const std::vector<Sequence>& take_maybe_complete();

  // To a member or a station over the stream: nothing to oneself and to who is gone.
  void send_frame(Member to, Channel channel, wire::FrameType type, Sequence sequence,
                  uint32_t argument, ConstBytes body = {}, ConstBytes payload = {});
  void send_to_children(wire::FrameType type, Sequence sequence, uint32_t argument,
                        ConstBytes body = {});
  // To parent and children, except `except`.
  void flood(wire::FrameType type, Sequence sequence, uint32_t argument, ConstBytes body,
             Member except);
  // To all by multicast; false: the medium is full. `block`: of which the payload is a part, if the
  // transport shall gather it from there.
  bool send_datagram(wire::DatagramType type, Sequence sequence, uint32_t descriptor, Chunk chunk,
                     ConstBytes payload, bool last = false, bool in_order = false,
                     const Slice* block = nullptr);
  // A chunk of the own block, likewise.
  bool send_chunk(const Operation& op, Chunk chunk);

  // The peer's descriptor of an operation that is posted here; false, and both told: not ours.
  bool agrees(Member peer, Sequence sequence, uint32_t descriptor);
  void describe_to(Member to, Sequence sequence);
  // `other` has called something else: the group fails.
  void mismatch(Sequence sequence, Member other, const std::string& theirs);
  // The sender has broken the protocol of the frame's operation: the group fails.
  void broke(const Frame& header, const char* what);
  // An operation that is not posted here. False: too far ahead, the group fails.
  bool early_allowed(const Frame& header);

  // MessageLink: what one member sends to one other goes by the reduce channel.
  Facts message_facts() const;
  void send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                    ConstBytes body, ConstBytes payload = {}) override;
  bool takes(Member to, size_t bytes) override;
  bool ask(Member member) override;
  const Status& end_of(Member member) const override { return gone[member]; }
  void fail_for(const Status& why, Member culprit) override { fail(why, culprit); }
  const Status& failed_for() const override { return failure_.why; }
  void end(std::function<void(const Status&)> done, const Status& status) override {
    ended.emplace_back(std::move(done), status);
  }
  Counters& counts() override { return counters; }

  bool is_station(Member member) const { return member >= size; }
  bool reachable(Member member) const;
  Member first_child() const { return static_cast<Member>(tree.first_child(self)); }
  bool from_parent(Member member) const {
    return !tree.is_top(self) && member == tree.parent(self);
  }

 private:
  bool send_guarded(const wire::DatagramHeader& header, ConstBytes payload);

  struct {
    Status why;
    Member culprit = kNoMember;
    bool is_news = false;
    Status suspected;  // to be the reason from then on
    Nanos suspected_at = kNever;
  } failure_;
  struct {
    std::vector<Sequence> noted, taken;
  } maybe_complete_;
};

}  // namespace mcast
