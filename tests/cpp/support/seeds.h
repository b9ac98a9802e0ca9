// Seeds of simulated runs: a quarter is the same in every run (1, 2, ...), the others are fresh
// ones, counted from a base that is drawn when the program starts and printed.
//
//   MCAST_TEST_SEED=n     runs the seed n and no other: what a failure prints
//   MCAST_TEST_BASE=n     counts the fresh seeds from n: repeats a whole run
//   MCAST_TEST_SEEDS=n    per cent of the usual number; under ThreadSanitizer, which has nothing to
//                         find in a simulator of one thread, it is 12 if nothing is said
//   MCAST_TEST_NOTE=file  holds the seed under way: who ends or hangs there cannot say it any more
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mcast::test {

// Writes down that `seed` is run now, by the current test; that none is.
void note_seed(uint64_t seed);
void note_no_seed();

// Seeds that are run one after the other: a loop that comes to one notes it.
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

// `all` of them, or what the environment says, but no fewer than `least`: what a sum over them
// shows needs so many. Tests that share the work have a number each: their seeds differ.
Seeds seeds(uint64_t all, uint64_t share = 0, uint64_t least = 1);

// Whether MCAST_TEST_SEED is set: a test then tells more, and expects no sums over many seeds.
bool replaying();

// Reports a failure of `seed` in the current test.
void report_seed(uint64_t seed, const std::string& wrong);

// Runs `one` (a seed -> what went wrong, or "") for each seed and reports how to repeat a failure;
// ends after three.
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
