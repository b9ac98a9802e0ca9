// The laws about messages between two ranks. The possible failures and culprits are those of
// operations (laws.cpp); the laws of operations only require that messages fail together with their
// group.
#include <algorithm>

#include "sim/swarm/case.h"

namespace mcast::sim {

namespace {

const PlannedMessage& planned(const Case& c, const MessageEnd& end) {
  return c.plan.messages[end.message];
}

// A receive ends well only after its send was called; its bytes are then right.
void agree(const Case& c, const MessageEnd& receive) {
  if (!receive.receives || receive.ends == 0 || !receive.status.ok()) return;
  for (const MessageEnd& send : c.run.messages) {
    if (send.receives || send.message != receive.message) continue;
    if (send.called && send.posted <= receive.done) continue;
    c.broken("agreement", c.name(receive) + "succeeded before it was sent");
  }
}

// A message fails with its group: after a failed message, no later call of the same rank ends well.
// Does not check refused messages, nor operations of the other lane, which fails a little later.
void fail_with_their_group(const Case& c, const MessageEnd& failed) {
  if (failed.ends == 0 || failed.status.ok() || failed.done == failed.posted) return;
  const uint32_t group = planned(c, failed).group;
  const auto not_well = [&](const auto& later) {
    if (later.rank != failed.rank || later.ends == 0 || !later.status.ok()) return;
    if (later.done <= failed.done) return;
    c.broken("agreement", c.name(later) + "succeeded after message " +
                              std::to_string(failed.message) + " had failed there");
  };
  for (const MessageEnd& later : c.run.messages) {
    if (planned(c, later).group == group) not_well(later);
  }
  for (const CallEnd& later : c.run.calls) {
    if (c.op(later).group == group && lane_of(c.op(later).kind) == 1) not_well(later);
  }
}

// If all succeeded, each message was sent once and received once, with all of its bytes.
void balance_messages(const Case& c) {
  if (!all_well(c)) return;
  for (uint32_t g = 0; g < c.run.groups.size(); g++) {
    uint64_t count = 0, bytes = 0;
    for (const MessageEnd& end : c.run.messages) {
      if (planned(c, end).group != g || !end.carried || end.receives) continue;
      count++;
      bytes += planned(c, end).bytes;
    }
    const auto expect = [&](Counter counter, uint64_t want) {
      const uint64_t have = c.run.groups[g].total(counter);
      if (have == want) return;
      c.broken("balance", "group " + std::to_string(g) + ": " + counter_name(counter) + ": " +
                              std::to_string(have) + ", expected " + std::to_string(want));
    };
    expect(Counter::messages_sent, count);
    expect(Counter::messages_received, count);
    expect(Counter::message_bytes_sent, bytes);
    expect(Counter::message_bytes_received, bytes);
  }
}

// No member leaves early; the counters of one that does are gone before they are read.
bool all_stay(const Plan& plan) {
  return std::all_of(plan.groups.begin(), plan.groups.end(),
                     [](const PlannedGroup& group) { return group.early == 0; });
}

}  // namespace

void message_laws(const Case& c) {
  for (const MessageEnd& end : c.run.messages) {
    if (end.ends > 1)
      c.broken("once", c.name(end) + "ended " + std::to_string(end.ends) + " times");
    if (!end.wrong.empty()) c.broken("bytes", c.name(end) + end.wrong);
    agree(c, end);
    fail_with_their_group(c, end);
    if (end.ends > 0 && !end.status.ok() && c.causes.culprits.count(end.rank) == 0) {
      blame_one(c, c.name(end), planned(c, end).group, end.status);
    }
  }
  if (all_stay(c.plan)) balance_messages(c);
}

}  // namespace mcast::sim
