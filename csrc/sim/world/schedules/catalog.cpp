// Maps algorithm and operation to a schedule: one table for making a schedule and for checking
// whether there is one.
#include <algorithm>
#include <iterator>

#include "sim/world/schedules/schedules.h"

namespace mcast::sim {
namespace {

struct Entry {
  std::string_view algorithm;
  Collective op;
  std::unique_ptr<Schedule> (*make)(const Layout&);
};

constexpr Entry kEntries[] = {
    {"ring-schedule", Collective::kAllGather, ring_all_gather},
    {"ring-schedule", Collective::kReduceScatter, ring_reduce_scatter},
    {"ring-schedule", Collective::kAllReduce, ring_all_reduce},
    {"recursive-doubling", Collective::kAllGather, doubling_all_gather},
    {"binomial", Collective::kBroadcast, binomial_broadcast},
    {"chain", Collective::kBroadcast, chain_broadcast},
    {"direct", Collective::kAllGather, direct_all_gather},
    {"direct", Collective::kReduceScatter, direct_reduce_scatter},
};

const Entry* find_entry(std::string_view algorithm, Collective op) {
  const auto* const at =
      std::find_if(std::begin(kEntries), std::end(kEntries),
                   [&](const Entry& e) { return e.algorithm == algorithm && e.op == op; });
  return at == std::end(kEntries) ? nullptr : at;
}

}  // namespace

std::unique_ptr<Schedule> make_schedule(std::string_view algorithm, Collective op,
                                        const Layout& layout) {
  const Entry* const entry = find_entry(algorithm, op);
  return entry == nullptr ? nullptr : entry->make(layout);
}

bool has_schedule(std::string_view algorithm, Collective op) {
  return find_entry(algorithm, op) != nullptr;
}

}  // namespace mcast::sim
