// GroupContext: state that the parts of a group share: the members, the operations in flight, their
// path, and the sending of frames and datagrams. It also keeps two notes for GroupCore, which acts
// on them at the end of the event that it handles: the group has failed; an operation may be
// complete. So no part calls back into another one while it holds an operation, and none is
// destroyed under it.
//
// Threads: the lane's, except readers of `counters`.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "collective/external_fold.h"
#include "collective/group_params.h"
#include "collective/group_path.h"
#include "collective/message_link.h"
#include "collective/operation.h"
#include "collective/operation_queue.h"
#include "collective/port.h"
#include "protocol/tree.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast {

enum class GroupState : uint8_t {
  kNew,      // the path is not decided and no probe has been sent
  kProbing,  // members join and test whether multicast reaches them
  kOpen,
  kSwitching,  // no operation starts until all agree on a cut-over (cutover.h)
  kFailed,
};

class GroupContext final : public MessageLink {
 public:
  using Frame = wire::FrameHeader;
  // Operations that another rank may be ahead of this one. It limits the memory for early frames.
  static constexpr Sequence kFurthestAhead = 1u << 20;
  // Batches of an operation that are sent before the receive side is polled again.
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
  std::vector<Status> gone;      // by member: why it can no longer be reached
  ExternalFold* fold = nullptr;  // null: ranks fold everything

  // Declared before the operations, which return memory to it in their destructors.
  ReduceRun::Shared reductions;
  OperationQueue ops;
  std::deque<Post> deferred;  // posts deferred by a cut-over or by lack of room
  uint32_t unfinished = 0;    // operations without a result
  struct {
    bool closing = false;          // no further posts; leaves once everything is confirmed
    bool all_here = true;          // no member has left or is gone, so all can agree on a change
    Nanos limit = 0, timeout = 0;  // the latest time limit of the posted operations
  } leaving;
  uint32_t large_in_flight = 0;
  // Results whose callbacks GroupCore::deliver() will run.
  std::vector<std::pair<std::function<void(const Status&)>, Status>> ended;

  Operation* find(Sequence sequence) { return ops.find(sequence); }
  // Sequence of the next post.
  Sequence next_sequence() const { return ops.next() + static_cast<Sequence>(deferred.size()); }
  bool switching() const { return state == GroupState::kSwitching; }
  // Whether this member needs other members for its posted operations: for their results, and while
  // it closes, for the confirmation that all members have theirs.
  bool needs_others() const { return unfinished > 0 || (leaving.closing && !ops.empty()); }

  // Fails the group at the end of this event. The first reason wins. `culprit`: reported to others.
  void fail(const Status& why, Member culprit);
  // Like fail(), at time `when`, unless a reason is found before. The earliest of several wins.
  void fail_later(const Status& why, Nanos when);
  Nanos suspicion_until() const { return failure_.suspected_at; }
  // Fails the group if the time given to fail_later() has passed. kNever: whatever that time is.
  void drive_suspicion(Nanos now);
  bool failed() const { return state == GroupState::kFailed; }
  const Status& failure() const { return failure_.why; }
  Member culprit() const { return failure_.culprit; }
  // Runs once, at the failure, before the operations are failed.
  std::function<void(const Status&)> on_failure;
  // Describes the operation, for errors.
  std::string op_text(const Post& post, Nanos now) const {
    return describe_failed(post, params.name, self, now);
  }
  // Returns true once after the failure, which must then be reported to the others.
  bool take_news_of_failure() { return std::exchange(failure_.is_news, false); }

  // Makes GroupCore check at the end of this event whether the operation is complete.
  void may_be_complete(const Operation& op) { maybe_complete_.noted.push_back(op.post.sequence); }
  // Whether this event has left a note.
  bool has_notes() const { return !maybe_complete_.noted.empty() || failure_.is_news; }
  // The noted operations, in the order of the notes. Valid until the next call.
  const std::vector<Sequence>& take_maybe_complete();

  // Sends a frame to a member or a station by stream. Ignored for this member and for peers that
  // are gone.
  void send_frame(Member to, Channel channel, wire::FrameType type, Sequence sequence,
                  uint32_t argument, ConstBytes body = {}, ConstBytes payload = {});
  void send_to_children(wire::FrameType type, Sequence sequence, uint32_t argument,
                        ConstBytes body = {});
  // Sends to parent and children, except to `except`.
  void flood(wire::FrameType type, Sequence sequence, uint32_t argument, ConstBytes body,
             Member except);
  // Multicasts to all. Returns false if the medium is full. `block`: the block that contains the
  // payload, if the transport should gather the payload from it.
  bool send_datagram(wire::DatagramType type, Sequence sequence, uint32_t descriptor, Chunk chunk,
                     ConstBytes payload, bool last = false, bool in_order = false,
                     const Slice* block = nullptr);
  // Multicasts a chunk of this member's own block. Returns false if the medium is full.
  bool send_chunk(const Operation& op, Chunk chunk);

  // Compares the peer's descriptor of an operation that is posted here. If it differs from ours,
  // informs both and returns false.
  bool agrees(Member peer, Sequence sequence, uint32_t descriptor);
  void describe_to(Member to, Sequence sequence);
  // Fails the group: `other` has posted a different operation.
  void mismatch(Sequence sequence, Member other, const std::string& theirs);
  // Fails the group: the sender has broken the protocol of the frame's operation.
  void broke(const Frame& header, const char* what);
  // The operation is not posted here. Returns false and fails the group if it is too far ahead.
  bool early_allowed(const Frame& header);

  // MessageLink: messages from one member to another use the reduce channel.
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
    Status suspected;  // becomes the reason at suspected_at
    Nanos suspected_at = kNever;
  } failure_;
  struct {
    std::vector<Sequence> noted, taken;
  } maybe_complete_;
};

}  // namespace mcast
