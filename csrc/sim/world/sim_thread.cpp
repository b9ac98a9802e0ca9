// Turns are as in sim_lane.cpp, without commands: a planned turn is an event of the network; a
// superseded one is ignored when its time comes.
#include "sim/world/sim_thread.h"

#include <algorithm>

namespace mcast::sim {

void SimThread::plan(Nanos at) {
  if (killed_ || paused_ || !runs() || at == kNever) return;
  at = std::max({at, free_at_, all_.network().now()});
  if (at >= due_) return;
  due_ = at;
  all_.network().turn_at(at, number_);
}

void SimThread::on_news() {
  // A thread that is still busy handles it in its next turn.
  const Nanos now = all_.network().now();
  plan(now < free_at_ ? free_at_ : now + costs_.wake);
}

bool SimThread::on_turn() {
  const Nanos now = all_.network().now();
  if (due_ != now || killed_ || paused_) return false;
  due_ = kNever;
  free_at_ = now + costs_.turn;
  const Nanos shown_now = clock_.at(now), next = act(shown_now);
  plan(next <= shown_now ? free_at_ : clock_.when(next));
  return true;
}

void SimThread::pause(bool paused) {
  paused_ = paused;
  due_ = kNever;
  if (!paused) on_news();
}

}  // namespace mcast::sim
