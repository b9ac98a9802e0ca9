// Seeds of simulated runs: a quarter is the same in every run (1, 2, ...), the others are fresh
// ones, counted from a base that is drawn when the program starts and printed.
//
//   MCAST_TEST_SEED=n     runs the seed n and no other: what a failure prints
//   MCAST_TEST_BASE=n     counts the fresh seeds from n: repeats a whole run
//   MCAST_TEST_SEEDS=n    per cent of the usual number; under ThreadSanitizer, which has nothing to
//                         find in a simulator of one thread, it is 12 if nothing is said
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mcast::test {

// `all` of them, or what the environment says. Tests that share the work have a number each: their
// seeds differ.
std::vector<uint64_t> seeds(uint64_t all, uint64_t share = 0);

// Whether MCAST_TEST_SEED is set: a test then tells more, and expects no sums over many seeds.
bool replaying();

// Reports a failure of `seed` in the current test.
void report_seed(uint64_t seed, const std::string& wrong);

// Runs `one` (a seed -> what went wrong, or "") for each seed and reports how to repeat a failure;
// ends after three.
template <typename One>
void for_seeds(const std::vector<uint64_t>& all, One one) {
  int failures = 0;
  for (const uint64_t seed : all) {
    const std::string wrong = one(seed);
    if (wrong.empty()) continue;
    report_seed(seed, wrong);
    if (++failures == 3) return;
  }
}

}  // namespace mcast::test
