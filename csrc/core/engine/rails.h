// Rails: how a group of several hosts with equally many ranks each moves large broadcasts and
// all-gathers, so that a host receives every stream once. Rail k is a group of the k-th ranks of
// all hosts, with a multicast address of its own; another group connects the ranks of a host by
// shared memory. An all-gather is one on every rail, of which the ranks of a host then take each
// other's blocks; a broadcast is cut into as many parts as there are rails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/plan.h"
#include "engine/split.h"
#include "protocol/hosts.h"

namespace mcast {

class Rails final : public Split {
 public:
  // `agreed`: the whole group's. hosts.even(), several hosts, several ranks on each.
  Rails(const Hosts& hosts, Member self, const Agreed& agreed, std::shared_ptr<GroupBase> rail,
        std::shared_ptr<GroupBase> host);

  bool carries(const wire::Descriptor& descriptor) const override;
  std::string streams_text() const override;
  // "ranks of 'g/rail 1': 1, 3; of 'g/host 0': 0, 1".
  std::string ranks_text() const override { return names_; }
  void add_to(GroupStats& stats) const override;

 private:
  void post_parts(const Post& whole, const std::shared_ptr<Parts>& parts) override;
  void post_allgather(const Post& whole, const std::shared_ptr<Parts>& parts);
  void post_broadcast(const Post& whole, const std::shared_ptr<Parts>& parts);
  // A broadcast as it is carried out here.
  struct Broadcast {
    const Post& whole;
    const Shares shares;     // the rails' parts
    size_t piece = 0;        // what the ranks of a host take from each other at once
    Member from = 0;         // the root's host,
    Member root = 0;         // its place there,
    bool with_root = false;  // and whether that is our host
    Slice memory{};          // the whole, here
    Slice ours{};            // our part of it, as the neighbours or the rail may read it
    std::function<void(size_t rail, uint64_t bytes)>
        on_completed{};  // completed end of a part; may be none
  };
  Broadcast cut(const Post& whole) const;
  Post broadcast_on_rail(const Broadcast& b) const;
  Post broadcast_on_host(const Broadcast& b, size_t i, size_t at) const;
  std::string names() const;
  GroupBase& rail() const { return *groups_[0]; }
  GroupBase& host() const { return *groups_[1]; }
  // The rank of the whole group that has this place on our rail.
  Member rank_on_rail(uint32_t place) const { return hosts_.members(place)[place_]; }

  const Hosts hosts_;
  Agreed agreed_;              // a rail's
  Member here_ = 0;            // our host: our place on the rail
  Member place_ = 0;           // our place on the host: the rail
  std::vector<Member> local_;  // ranks of our host
  std::string names_;
  const std::function<void()> wake_rail_, wake_host_;
};

}  // namespace mcast
