// The schedules that there are. They are lower bounds of what programs reach: no cost of a host, no
// copies, no protocol between the ranks.
//
//   ring                a rank passes what has come to it to the next, in pieces of up to 64 KiB
//   recursive doubling  all-gather: partners at distance 1, 2, 4, ... exchange all that they have;
//                       where the number of ranks is no power of two, Bruck et al. 1997
//   binomial            broadcast: who has the data sends it whole to the rank 1, 2, 4, ... above
//   chain               broadcast: pieces of 64 KiB go from rank to rank
//   direct              everyone sends to everyone, from the next rank on around
#pragma once

#include <memory>
#include <string_view>

#include "simulation/schedules/schedule.h"

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

// "ring-schedule", "recursive-doubling", "binomial", "chain", "direct"; null: it has no schedule
// for this operation.
std::unique_ptr<Schedule> make_schedule(std::string_view algorithm, Collective op,
                                        const Layout& layout);
// Whether there is one.
bool has_schedule(std::string_view algorithm, Collective op);

}  // namespace mcast::sim
