// Seeds of simulated runs. `make test` runs an eighth of them, the same in every run. A whole run
// (`make test-all`, `make soak`) runs all of them: a quarter is fixed (1, 2, ...), and the others
// are fresh, counted from a base that is drawn and printed when the program starts.
//
//   MCAST_TEST_SEED=n     runs the seed n and no other; a failure prints this setting
//   MCAST_TEST_ALL=1      a whole run
//   MCAST_TEST_BASE=n     a whole run whose fresh seeds count from n: repeats one
//   MCAST_TEST_SEEDS=n    per cent of all seeds, instead of 12, or 100 in a whole run; under
//                         ThreadSanitizer, which finds nothing in a simulator of one thread,
//                         instead of 1 and 12
//   MCAST_TEST_SHARE=n    per cent of the seeds that the variables above select
//   MCAST_TEST_NOTE=file  stores the current seed, since a program that crashes or hangs cannot
//                         print it
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mcast::test {

// Records that the current test now runs `seed`, or none.
void note_seed(uint64_t seed);
void note_no_seed();

// A sequence of seeds. Iterating over it records each seed when it is reached.
class Seeds {
 public:
  class Iterator {
   public:
    explicit Iterator(const uint64_t* at) : at_(at) {}
    uint64_t operator*() const {
      note_seed(*at_);
      return *at_;
    }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const uint64_t* at_;
  };

  explicit Seeds(std::vector<uint64_t> all) : all_(std::move(all)) {}
  Seeds(const Seeds&) = delete;
  Seeds& operator=(const Seeds&) = delete;
  ~Seeds() { note_no_seed(); }
  size_t size() const { return all_.size(); }
  Iterator begin() const { return Iterator(all_.data()); }
  Iterator end() const { return Iterator(all_.data() + all_.size()); }

 private:
  std::vector<uint64_t> all_;
};

// The number of seeds out of `all` that the environment selects, but at least `least`.
uint64_t seed_count(uint64_t all, uint64_t least = 1);

// Returns true in a whole run: all seeds, most of them fresh.
bool whole_run();

// Returns seed_count() seeds; a test whose sums need a minimum passes `least`. Tests that share the
// work pass different values of `share` and get different seeds.
Seeds seeds(uint64_t all, uint64_t share = 0, uint64_t least = 1);

// Returns true if MCAST_TEST_SEED is set. A test then prints more, and expects no sums over many
// seeds.
bool replaying();

// Reports a failure of `seed` in the current test.
void report_seed(uint64_t seed, const std::string& wrong);

// Runs `one` (a seed -> the error or "") for each seed and reports how to repeat a failure. Stops
// after three failures.
template <typename One>
void for_seeds(const Seeds& all, One one) {
  int failures = 0;
  for (const uint64_t seed : all) {
    const std::string wrong = one(seed);
    if (wrong.empty()) continue;
    report_seed(seed, wrong);
    if (++failures == 3) return;
  }
}

}  // namespace mcast::test
