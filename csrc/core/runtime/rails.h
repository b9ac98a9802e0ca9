// Rails: carry large broadcasts and all-gathers of a group of several hosts with equally many ranks
// each, so that a host receives every stream once. Rail k is a group of the k-th ranks of all
// hosts, with a separate multicast address; another group connects the ranks of a host by shared
// memory. An all-gather runs on every rail, and the ranks of a host then copy each other's blocks.
// A broadcast is cut into as many parts as there are rails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/plan.h"
#include "protocol/hosts.h"
#include "runtime/split.h"

namespace mcast {

class Rails final : public Split {
 public:
  // `agreed`: of the whole group. hosts.even(), several hosts, several ranks on each.
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
  // A broadcast as this rank carries it out.
  struct Broadcast {
    const Post& whole;
    const Shares shares;     // the parts of the rails
    size_t piece = 0;        // bytes that the ranks of a host copy from each other at once
    Member from = 0;         // host of the root
    Member root = 0;         // place of the root on its host
    bool with_root = false;  // whether that is our host
    Slice memory{};          // the whole data at this rank
    Slice ours{};            // our part of it, as readable by the neighbours or the rail
    std::function<void(size_t rail, uint64_t bytes)>
        on_completed{};  // completed end of a part; may be none
  };
  Broadcast cut(const Post& whole) const;
  Post broadcast_on_rail(const Broadcast& b) const;
  Post broadcast_on_host(const Broadcast& b, size_t i, size_t at) const;
  std::string names() const;
  GroupBase& rail() const { return *groups_[0]; }
  GroupBase& host() const { return *groups_[1]; }
  // The rank of the whole group that is at this place on our rail.
  Member rank_on_rail(uint32_t place) const { return hosts_.members(place)[place_]; }

  const Hosts hosts_;
  Agreed agreed_;              // of a rail
  Member here_ = 0;            // our host, which is our place on the rail
  Member place_ = 0;           // our place on the host, which is the number of our rail
  std::vector<Member> local_;  // ranks of our host
  std::string names_;
  const std::function<void()> wake_rail_, wake_host_;
};

}  // namespace mcast
