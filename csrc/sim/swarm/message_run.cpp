// Each member that sends or receives has its own script, ordered by time, since the order of posts
// decides which send a receive matches. The script is empty for a group that carries no messages:
// one of ranks of one host in shared memory.
#include "sim/swarm/message_run.h"

#include <algorithm>
#include <utility>

namespace mcast::sim {

MessageRun::MessageRun(const Plan& plan, World& world, Hooks hooks)
    : plan_(plan), world_(world), hooks_(std::move(hooks)) {
  for (uint32_t i = 0; i < plan.messages.size(); i++) {
    const PlannedMessage& one = plan.messages[i];
    scripts_[{one.group, one.from}].steps.push_back({i, false, one.at});
    scripts_[{one.group, one.to}].steps.push_back({i, true, one.by});
  }
  for (auto& [place, script] : scripts_) {
    std::stable_sort(script.steps.begin(), script.steps.end(),
                     [](const Step& a, const Step& b) { return a.due < b.due; });
    script.left = script.steps.size();
    left_ += script.left;
  }
}

void MessageRun::begin(size_t group, Member member, World::GroupId id) {
  const auto it = scripts_.find({group, member});
  if (it == scripts_.end()) return;
  it->second.ready = true;
  it->second.id = id;
  it->second.carried = world_.group(id, member).carries_messages();
  if (!it->second.carried) return drop(group, member);
  advance(group, member);
}

void MessageRun::advance(size_t group, Member member) {
  const auto it = scripts_.find({group, member});
  if (it == scripts_.end()) return;
  Script& script = it->second;
  const uint32_t rank = plan_.groups[group].ranks[member];
  while (script.ready && !script.dropped && script.next < script.steps.size() &&
         !hooks_.paused(rank)) {
    const Nanos due = script.steps[script.next].due;
    if (due > world_.now()) {
      return world_.at(due, [this, group, member] { advance(group, member); });
    }
    call(it->first, script);
  }
}

void MessageRun::call(Place place, Script& script) {
  const Step step = script.steps[script.next++];
  const PlannedMessage& planned = plan_.messages[step.message];
  Message message;
  message.id = plan_.ops.size() + 1 + step.message;
  message.bytes = planned.bytes;
  message.from = static_cast<Member>(planned.from);
  message.to = static_cast<Member>(planned.to);
  message.tag = planned.tag;
  message.any = planned.any != 0;
  message.timeout = planned.timeout;
  const auto outcome =
      world_.post_message(script.id, message, step.receives, [this, place](const Outcome& one) {
        if (one.ends == 1) on_end(place);
      });
  script.outcomes.push_back(outcome);
  if (outcome->over()) on_end(place);  // the post was refused
}

void MessageRun::on_end(Place place) {
  Script& script = scripts_.at(place);
  if (script.dropped) return;
  script.left--;
  left_--;
  hooks_.on_end(place.first, place.second);
}

void MessageRun::drop(size_t group, Member member) {
  const auto it = scripts_.find({group, member});
  if (it == scripts_.end() || std::exchange(it->second.dropped, true)) return;
  left_ -= std::exchange(it->second.left, 0);
}

size_t MessageRun::left(size_t group, Member member) const {
  const auto it = scripts_.find({group, member});
  return it == scripts_.end() ? 0 : it->second.left;
}

std::vector<MessageEnd> MessageRun::ends() const {
  std::vector<MessageEnd> all;
  for (const auto& [place, script] : scripts_) {
    for (size_t k = 0; k < script.steps.size(); k++) {
      MessageEnd& end = all.emplace_back();
      end.message = script.steps[k].message;
      end.receives = script.steps[k].receives;
      end.rank = plan_.groups[place.first].ranks[place.second];
      end.carried = script.carried;
      end.ready = script.ready;
      if (k < script.outcomes.size()) end.note(*script.outcomes[k]);
    }
  }
  return all;
}

}  // namespace mcast::sim
