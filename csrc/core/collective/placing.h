// Placing: streams of operations whose chunks a device writes into memory, where the transport has
// such a thing (Placer). Memory that a device may write to is not given back: an operation is
// complete here, or hands back its failure, once all its slices are retired.
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

  // The operation's machines are there: the device has its streams from now on, as far as it has
  // room for them.
  void start(const Operation& op);
  // All of a stream is here.
  void end(const Operation& op, uint32_t stream) {
    if (!open_.empty()) retire(op.post.sequence, op.member_of(stream));
  }
  // No device writes for the operation.
  bool retired(const Operation& op) const {
    return open_.empty() || open_.count(op.post.sequence) == 0;
  }
  void on_retired(const SliceName& name);

  // An operation ends before its streams do. True: its result and its memory are kept here, and are
  // handed on when its slices are retired.
  bool hold(Post& post, const Status& status);
  // Nothing is retired later than now.
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
