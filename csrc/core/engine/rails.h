// Rails: how a group of several hosts with equally many ranks each moves large broadcasts and
// all-gathers, so that a host receives every stream once. Rail k is a group of the k-th ranks of
// all hosts, with a multicast address of its own; another group connects the ranks of a host by
// shared memory. An all-gather is one on every rail, of which the ranks of a host then take each
// other's blocks; a broadcast is cut into as many parts as there are rails. The whole group itself
// only sees to it that all ranks make the same call, and ends it for all (Post::elsewhere).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/hosts.h"
#include "collective/plan.h"
#include "engine/group_base.h"

namespace mcast {

class Rails {
 public:
  // `agreed`: the whole group's. hosts.even(), several hosts, several ranks on each.
  Rails(const Hosts& hosts, Member self, const Agreed& agreed, std::shared_ptr<GroupBase> rail,
        std::shared_ptr<GroupBase> host);

  // Whether operations like this one go by rails: the same on all ranks.
  bool carries(const wire::Descriptor& descriptor) const;

  // What becomes of the parts of an operation. Any thread, one call at a time.
  struct Events {
    std::function<void()> arrived;               // all is here, and taken by the neighbours
    std::function<void(const Status&)> trouble;  // the first part has failed; call fail() soon
    std::function<void()> ended;                 // all parts have; no memory is held any more
  };
  // `whole`: its `done` is not called. The caller serializes the calls.
  void post(Post whole, Events events);
  // Fails what is in flight. Any thread.
  void fail(const Status& why);

  // Sources have become readable further.
  std::function<void()> waker() const {
    return [rail = wake_rail_, host = wake_host_] {
      rail();
      host();
    };
  }
  const GroupBase& rail() const { return *rail_; }
  // "ranks of group 'g/rail 1': 1, 3; of 'g/host 0': 0, 1": for errors of parts, whose ranks are
  // their own.
  const std::string& ranks_text() const { return names_; }
  // Adds what the parts have moved.
  void add_to(GroupStats& stats) const;

 private:
  struct Parts;
  std::string names() const;
  // The rank of the whole group that has this place on our rail.
  Member rank_on_rail(Member place) const { return hosts_.members(place)[place_]; }
  void post_allgather(const Post& whole, const std::shared_ptr<Parts>& parts);
  void post_broadcast(const Post& whole, const std::shared_ptr<Parts>& parts);
  void part(GroupBase& group, Post post, const std::shared_ptr<Parts>& parts);

  const Hosts hosts_;
  Agreed agreed_;              // a rail's
  Member here_ = 0;            // our host: our place on the rail
  Member place_ = 0;           // our place on the host: the rail
  std::vector<Member> local_;  // ranks of our host
  const std::shared_ptr<GroupBase> rail_, host_;
  std::string names_;
  const std::function<void()> wake_rail_, wake_host_;
};

}  // namespace mcast
