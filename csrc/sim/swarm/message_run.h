// Runs the messages of a plan: each member of a group sends and receives in the order of the
// planned times, while its process runs, in parallel with its operations. Remaining messages of a
// dead or permanently stopped rank are not waited for.
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/swarm/runner.h"
#include "sim/world/world.h"

namespace mcast::sim {

class MessageRun {
 public:
  struct Hooks {
    std::function<bool(uint32_t rank)> paused;
    std::function<void(size_t group, Member)> on_end;  // a message of this member has ended
  };
  MessageRun(const Plan& plan, World& world, Hooks hooks);

  // The member has the group; starts its messages.
  void begin(size_t group, Member member, World::GroupId id);
  // Must be called when the member's process runs again.
  void advance(size_t group, Member member);
  // Its remaining messages are not waited for any more.
  void drop(size_t group, Member member);

  // Number of messages that are still waited for, in total and of one member.
  size_t left() const { return left_; }
  size_t left(size_t group, Member member) const;
  std::vector<MessageEnd> ends() const;

 private:
  struct Step {
    uint32_t message = 0;  // index in the plan
    bool receives = false;
    Nanos due = 0;
  };
  struct Script {
    std::vector<Step> steps;
    size_t next = 0, left = 0;
    bool ready = false, dropped = false, carried = true;
    World::GroupId id = 0;
    std::vector<std::shared_ptr<const Outcome>> outcomes;  // of messages that were posted
  };
  using Place = std::pair<size_t, Member>;

  void call(Place place, Script& script);
  void on_end(Place place);

  const Plan& plan_;
  World& world_;
  const Hooks hooks_;
  std::map<Place, Script> scripts_;
  size_t left_ = 0;
};

}  // namespace mcast::sim
