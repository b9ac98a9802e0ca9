// Lengths are on both sides of the limits for data that is sent with a message's head and for data
// that a receiver grants at once; many short messages, sent long before they are received, use up
// the sender's account at the receiver. Messages between two members with one tag follow each
// other, as check() requires.
#include "sim/swarm/generate_messages.h"

#include <algorithm>

#include "sim/swarm/draw.h"

namespace mcast::sim {

namespace {

constexpr uint64_t kWithHead = 32u << 10;  // bytes of a message that come with its head

uint64_t draw_length(Rng& rng) {
  switch (rng.below(6)) {
    case 0:
      return one_of<uint64_t>(rng, {0, 1, 8});
    case 1:
      return kWithHead - 1 + rng.below(3);
    case 2:
      return 1'000'000 + rng.below(1'000'000);
    default:
      return 1 + rng.below(one_of<uint64_t>(rng, {2000, 60'000, 300'000}));
  }
}

Nanos draw_time(Rng& rng, Nanos from) {
  const auto span = one_of<Nanos>(rng, {100 * kMicro, 5 * kMilli, 30 * kMilli});
  return from + static_cast<Nanos>(rng.below(static_cast<uint64_t>(span)));
}

// Sets times that are not before those of the last message between these two with this tag.
void put_behind(const Plan& plan, PlannedMessage& message) {
  for (const PlannedMessage& one : plan.messages) {
    if (one.group != message.group || one.to != message.to || one.tag != message.tag) continue;
    if (one.from != message.from) continue;
    message.at = std::max(message.at, one.at);
    message.by = std::max(message.by, one.by);
  }
}

}  // namespace

void draw_messages(Plan& plan, Rng rng) {
  if (!rng.chance(0.35)) return;
  const auto g = static_cast<uint32_t>(rng.below(plan.groups.size()));
  const size_t members = plan.groups[g].ranks.size();
  const bool many = rng.chance(0.3);
  const size_t count = 1 + rng.below(many ? 60 : 12);
  const auto to_one = static_cast<uint32_t>(rng.below(members));
  for (size_t i = 0; i < count; i++) {
    PlannedMessage message;
    message.group = g;
    message.to = many ? to_one : static_cast<uint32_t>(rng.below(members));
    message.from = static_cast<uint32_t>((message.to + 1 + rng.below(members - 1)) % members);
    message.bytes = many ? rng.below(6000) : draw_length(rng);
    message.any = rng.chance(0.2) ? 1 : 0;
    message.tag = message.any != 0 ? static_cast<uint32_t>(100 + i) : rng.chance(0.7) ? 0 : 7;
    message.at = draw_time(rng, plan.groups[g].at);
    message.by = draw_time(rng, many ? message.at : plan.groups[g].at);
    if (rng.chance(0.01)) message.timeout = one_of<Nanos>(rng, {5 * kMilli, 2 * kSecond});
    put_behind(plan, message);
    plan.messages.push_back(message);
  }
}

}  // namespace mcast::sim
