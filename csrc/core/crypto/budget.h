// OpenBudget: limits the work spent on opening datagrams that turn out to be forged. A forger who
// has captured a true header gets past the filter, and each of his datagrams would cost a pass over
// its bytes. Within a window a number of bytes may fail; beyond that each packet number is tried
// once per window, so that true datagrams, whose numbers all differ, still get through. A true
// datagram that is displaced counts as lost, and is repaired by stream.
//
// One per lane. Not thread-safe; no allocation after the constructor.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "crypto/filter.h"

namespace mcast::crypto {

struct BudgetLimits {
  uint64_t bytes = 256u << 10;  // that may fail in a window
  uint64_t each = 1u << 10;     // added for each failure
  Nanos window = 10 * kMilli;
  size_t numbers = 4096;  // that are remembered; a power of two
};

class OpenBudget {
 public:
  // `key`: random, so that nobody can choose numbers that displace a true one.
  explicit OpenBudget(const BudgetLimits& limits = {}, const FilterKey& key = {});

  // Returns true if the datagram with this number, from this sender, may be opened.
  bool allows(uint16_t sender, uint64_t number, Nanos now);
  // Opening it was tried, and failed.
  void failed(size_t bytes, Nanos now);

  uint64_t refused() const { return refused_; }  // attempts, in total

 private:
  void begin(Nanos now);

  size_t place_of(uint16_t sender, uint64_t number) const;

  BudgetLimits limits_;
  FilterKey key_;
  Nanos until_ = 0;  // end of the window
  uint64_t spent_ = 0;
  uint32_t round_ = 1;           // numbers the windows in which the table was used
  bool used_ = false;            // the table was used in this window
  std::vector<uint32_t> tried_;  // by hash of a number: the round in which one was last tried
  uint64_t refused_ = 0;
};

}  // namespace mcast::crypto
