// Block lengths are on both sides of the limits for data that is sent unasked and for one piece;
// all blocks of a plan together are some MB.
#include "sim/swarm/generate_exchanges.h"

#include <algorithm>

#include "sim/swarm/draw.h"

namespace mcast::sim {

namespace {

constexpr uint64_t kMostInAll = 4'000'000;  // bytes of an operation

uint64_t draw_length(Rng& rng, uint64_t most) {
  switch (rng.below(6)) {
    case 0:
      return one_of<uint64_t>(rng, {0, 1, 8});
    case 1:
      return one_of<uint64_t>(rng, {16'384, 49'152, 61'440}) - 1 + rng.below(3);
    case 2:
      return most;
    default:
      return 1 + rng.below(one_of<uint64_t>(rng, {2000, 60'000, 300'000}));
  }
}

}  // namespace

void draw_exchange(PlannedOp& op, size_t members, Rng& rng) {
  op.kind = one_of(rng, {wire::Kind::kAllToAll, wire::Kind::kAllToAll, wire::Kind::kGather,
                         wire::Kind::kScatter});
  const bool rooted = wire::is_rooted(op.kind);
  op.root = rooted ? static_cast<uint32_t>(rng.below(members)) : 0;
  op.splits = !rooted && rng.chance(0.6) ? 1 + rng.below(1000) : 0;
  const uint64_t most = kMostInAll / members / (rooted ? 1 : members);
  op.bytes = std::min(draw_length(rng, most), most);
}

void draw_exchanges(Plan& plan, size_t group, Rng& rng) {
  const size_t members = plan.groups[group].ranks.size(), count = 4 + rng.below(30);
  const auto late = static_cast<uint32_t>(rng.below(members));
  const auto most = one_of<uint64_t>(rng, {1, 1000, 16'384, 50'000});
  const bool alike = rng.chance(0.5);
  PlannedOp op;
  op.group = static_cast<uint32_t>(group);
  op.at = plan.groups[group].at;
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || !alike) draw_exchange(op, members, rng);
    op.bytes = alike ? most : std::min(op.bytes, most);
    if (alike && op.kind == wire::Kind::kGather) op.root = late;
    op.late = i == 0 ? late : kNoMember;
    op.by = i == 0 ? op.at + static_cast<Nanos>(rng.below(20 * kMilli)) : 0;
    plan.ops.push_back(op);
  }
}

}  // namespace mcast::sim
