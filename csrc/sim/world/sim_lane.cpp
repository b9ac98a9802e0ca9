// Replaces the thread of runtime/lane_thread.cpp. After a turn the lane either runs again at once,
// pauses by the clock while much data is under way, or sleeps until the deadline or a wake-up. A
// planned turn is an event of the network; if an earlier turn is planned later, the superseded one
// stays in the queue and is ignored when its time comes.
#include "sim/world/sim_lane.h"

#include <algorithm>
#include <utility>

namespace mcast::sim {

SimLane::SimLane(SimNetwork& network, uint32_t number, const SimClock& clock,
                 const LaneCosts& costs, std::unique_ptr<SimTransport> endpoint,
                 LaneAccounts accounts, uint64_t seed)
    : network_(network),
      number_(number),
      clock_(clock),
      costs_(costs),
      endpoint_(*endpoint),
      loop_(std::move(endpoint), std::move(accounts)),
      description_(loop_.lane().transport().describe()),
      rng_(seed) {}

void SimLane::plan(Nanos at) {
  if (ended_ || paused_ || at == kNever) return;
  at = std::max({at, free_at_, deaf_until_, network_.now()});
  if (at >= due_) return;
  due_ = at;
  network_.turn_at(at, number_);
}

void SimLane::on_news() {
  // A thread that is still busy handles it in its next turn.
  const Nanos now = network_.now();
  plan(now < free_at_ ? free_at_ : now + costs_.wake);
}

bool SimLane::push(Command command) {
  if (ended_) return false;
  const Nanos now = network_.now();
  const auto delay = static_cast<Nanos>(rng_.below(static_cast<uint64_t>(costs_.command) + 1));
  const Nanos last = commands_.empty() ? 0 : commands_.back().at;
  const Nanos at = std::max(last, now + delay);
  commands_.push_back({at, std::move(command)});
  plan(at < free_at_ ? free_at_ : at + costs_.wake);
  return true;
}

bool SimLane::call(const Command& command) {
  if (ended_) return false;
  std::deque<Arriving> before = std::exchange(commands_, {});
  const Nanos now = clock_.at(network_.now());
  for (Arriving& arriving : before) arriving.command(loop_.lane(), now);
  command(loop_.lane(), now);
  plan(network_.now() + costs_.wake);
  return true;
}

void SimLane::close_group(uint64_t tag, Nanos deadline, bool force, Closed done) {
  const bool pushed = push([this, tag, deadline, force, done](Lane&, Nanos) {
    loop_.close_group(tag, deadline, force, done);
  });
  if (!pushed) done(Status(Code::kClosed, "the engine is shut down"));
}

bool SimLane::on_turn() {
  const Nanos now = network_.now();
  if (due_ != now || ended_ || paused_) return false;
  due_ = kNever;
  while (!commands_.empty() && commands_.front().at <= now) {
    batch_.push_back(std::move(commands_.front().command));
    commands_.pop_front();
  }
  const uint64_t datagrams = endpoint_.datagrams_taken();
  const bool again = loop_.turn(batch_, clock_.at(now));
  const double received =
      static_cast<double>(endpoint_.datagrams_taken() - datagrams) * costs_.per_datagram;
  free_at_ = now + costs_.turn + static_cast<Nanos>(received);
  if (ended_) return true;  // the turn itself ended the lane
  if (again) {
    spins_ = 0;
    plan(free_at_);
  } else {
    rest();
  }
  return true;
}

void SimLane::rest() {
  const Nanos now = network_.now(), shown = clock_.at(now);
  const Nanos next = loop_.deadline(shown);
  spins_ = next <= shown ? spins_ + 1 : 0;
  most_spins_ = std::max(most_spins_, spins_);
  if (next <= shown) return plan(free_at_);
  if (const Nanos pause = loop_.lane().coalesce(shown); pause > 0 && pause < next - shown) {
    deaf_until_ = clock_.when(shown + pause);
    due_ = kNever;  // wake-ups during the pause take effect at its end
    return plan(deaf_until_);
  }
  plan(clock_.when(next));
  if (!commands_.empty()) plan(commands_.front().at + costs_.wake);
}

void SimLane::pause(bool paused) {
  paused_ = paused;
  due_ = kNever;
  if (!paused) plan(network_.now() + costs_.wake);
}

void SimLane::end() {
  if (std::exchange(ended_, true)) return;
  std::vector<Command> left;
  for (Arriving& arriving : commands_) left.push_back(std::move(arriving.command));
  commands_.clear();
  loop_.end(left, clock_.at(network_.now()));
}

void SimLane::kill() {
  ended_ = true;
  commands_.clear();
}

}  // namespace mcast::sim
