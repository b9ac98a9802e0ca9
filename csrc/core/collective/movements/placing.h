// Placing: streams whose chunks a device writes into memory, if the transport has one (Placer).
// Memory that a device may write to is not returned to the caller: an operation completes here, or
// returns its failure, only once all its slices are retired.
//
// Threads: the lane's.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "collective/group_context.h"

namespace mcast {

class Placing {
 public:
  explicit Placing(GroupContext& context) : g_(context) {}

  // The operation's state machines exist: hands its streams to the device, as far as it has room.
  void start(const Operation& op);
  // The stream is complete.
  void end(const Operation& op, uint32_t stream) {
    if (!open_.empty()) retire(op.post.sequence, op.member_of(stream));
  }
  // True if no device writes for the operation.
  bool retired(const Operation& op) const {
    return open_.empty() || open_.count(op.post.sequence) == 0;
  }
  void on_retired(const SliceName& name);

  // The operation ends before its streams do. Returns true if its result and memory are kept here
  // until its slices are retired.
  bool hold(Post& post, const Status& status);
  // The group is being destroyed: revokes all slices, so that none is retired later.
  void abandon();
  bool idle() const { return open_.empty(); }

 private:
  struct Open {
    std::set<Member> roots;  // of its slices
    std::optional<std::pair<Post, Status>> held;
  };
  SliceName name(Sequence sequence, Member root) const { return {g_.params.tag, sequence, root}; }
  void retire(Sequence sequence, Member root);
  void forget(Sequence sequence, Member root);

  GroupContext& g_;
  std::map<Sequence, Open> open_;
};

}  // namespace mcast
