// The available schedules. Their times are lower bounds for real programs: they have no CPU cost of
// hosts, no copies and no protocol between the ranks.
//
//   ring                a rank passes on what it receives to the next, in pieces of up to 64 KiB
//   recursive doubling  all-gather: partners at distance 1, 2, 4, ... exchange all that they have;
//                       if the number of ranks is not a power of two, Bruck et al. 1997
//   binomial            broadcast: ranks with the data send it whole to the rank 1, 2, 4, ... above
//   chain               broadcast: pieces of 64 KiB go from rank to rank
//   direct              every rank sends to every other, from the next rank on, wrapping around
#pragma once

#include <memory>
#include <string_view>

#include "sim/world/schedules/schedule.h"

namespace mcast::sim {

inline constexpr uint64_t kPiece = 64 * 1024;

std::unique_ptr<Schedule> ring_all_gather(const Layout& layout);
std::unique_ptr<Schedule> ring_reduce_scatter(const Layout& layout);
std::unique_ptr<Schedule> ring_all_reduce(const Layout& layout);
std::unique_ptr<Schedule> doubling_all_gather(const Layout& layout);
std::unique_ptr<Schedule> binomial_broadcast(const Layout& layout);
std::unique_ptr<Schedule> chain_broadcast(const Layout& layout);
std::unique_ptr<Schedule> direct_all_gather(const Layout& layout);
std::unique_ptr<Schedule> direct_reduce_scatter(const Layout& layout);

// Algorithms: "ring-schedule", "recursive-doubling", "binomial", "chain", "direct". Null: the
// algorithm has no schedule for this operation.
std::unique_ptr<Schedule> make_schedule(std::string_view algorithm, Collective op,
                                        const Layout& layout);
// Returns true if the algorithm has a schedule for this operation.
bool has_schedule(std::string_view algorithm, Collective op);

}  // namespace mcast::sim
