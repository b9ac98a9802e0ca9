// Two words per rank and lane: its need of published rounds, and of consumed ones. Only the rank
// itself writes a need; peers replace it by 0, with compare-and-swap, so that a need that was armed
// again meanwhile stays.
#include "shm/needs.h"

#include "shm/failure_record.h"

namespace mcast {

bool Needs::met(const HostNeed& data) const {
  if (data.waiter == HostWaiter::kNone) return false;
  const uint64_t round = data.rounds - 1;
  return data.kind == HostNeed::Kind::kFrom ? lane_.published(data.member, round)
                                            : lane_.all_published(round);
}

bool Needs::arm(const HostNeed& data, uint64_t room, HostWaiter waiter) {
  HostNeed consumed;
  consumed.waiter = waiter;
  consumed.rounds = room;
  RankState& mine = lane_.mine();
  mine.need_published.store(data.pack(), std::memory_order_seq_cst);
  mine.need_consumed.store(room != kNoRoom ? consumed.pack() : 0, std::memory_order_seq_cst);
  const bool there = failure_readable(lane_.failure()) ||
                     (room != kNoRoom && lane_.least_consumed() >= room) || met(data);
  if (there) disarm();
  return !there;
}

void Needs::disarm() {
  lane_.mine().need_published.store(0, std::memory_order_relaxed);
  lane_.mine().need_consumed.store(0, std::memory_order_relaxed);
}

template <typename Met>
void Needs::wake(std::atomic<uint64_t> RankState::*need_of, Met met) {
  for (uint32_t i = 0; i < lane_.size(); i++) {
    const auto m = static_cast<Member>(i);
    if (m == lane_.self()) continue;
    auto& word = lane_.state(m).*need_of;
    uint64_t seen = word.load(std::memory_order_seq_cst);
    const HostNeed need = HostNeed::unpack(seen);
    if (need.waiter == HostWaiter::kNone || !met(need)) continue;
    if (word.compare_exchange_strong(seen, 0)) port_.wake(m, need.waiter);
  }
}

void Needs::wake_for_published() {
  const uint64_t ours = lane_.mine().published.load(std::memory_order_relaxed);
  wake(&RankState::need_published, [&](const HostNeed& need) {
    if (ours < need.rounds) return false;
    if (need.kind == HostNeed::Kind::kFrom) return need.member == lane_.self();
    return need.kind != HostNeed::Kind::kAll || lane_.all_published(need.rounds - 1);
  });
}

void Needs::wake_for_consumed() {
  const uint64_t least = lane_.least_consumed();
  wake(&RankState::need_consumed, [&](const HostNeed& need) { return least >= need.rounds; });
}

}  // namespace mcast
