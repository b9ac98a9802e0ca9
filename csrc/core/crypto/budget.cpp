// Windows by the clock. The table has one word per slot: the round in which a number with this hash
// was last tried. Two numbers of one slot displace each other within a window, which costs a true
// chunk a repair; remembering the number itself would let a forger alternate between two of them.
// The table is never cleared: each window that uses it has a new round.
#include "crypto/budget.h"

#include <array>

#include "wire/bytes.h"

namespace mcast::crypto {

OpenBudget::OpenBudget(const BudgetLimits& limits, const FilterKey& key)
    : limits_(limits), key_(key), tried_(limits.numbers, 0) {}

size_t OpenBudget::place_of(uint16_t sender, uint64_t number) const {
  std::array<std::byte, sizeof number + sizeof sender> which;
  wire::store<uint64_t>(which.data(), number);
  wire::store<uint16_t>(which.data() + sizeof number, sender);
  return siphash13(key_, which) & (tried_.size() - 1);
}

void OpenBudget::begin(Nanos now) {
  if (now < until_) return;
  until_ = now + limits_.window;
  spent_ = 0;
  if (used_) ++round_;
  used_ = false;
}

bool OpenBudget::allows(uint16_t sender, uint64_t number, Nanos now) {
  begin(now);
  if (spent_ < limits_.bytes) return true;
  used_ = true;
  uint32_t& slot = tried_[place_of(sender, number)];
  if (slot == round_) {
    ++refused_;
    return false;
  }
  slot = round_;
  return true;
}

void OpenBudget::failed(size_t bytes, Nanos now) {
  begin(now);
  spent_ += bytes + limits_.each;
}

}  // namespace mcast::crypto
