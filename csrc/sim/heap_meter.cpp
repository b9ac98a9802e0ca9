// Every allocation by `new` has a header with its size and its owner, the rank that was driven when
// it was made; so the right rank's account is reduced, whoever frees it. Accounts are a plain
// array, since a container would allocate. Allocations of the simulated network while a rank runs
// are not accounted to any rank (Driving).
#include "sim/heap_meter.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace mcast {
namespace {

constexpr uint32_t kMostRanks = 65536;

struct Account {
  uint64_t held = 0, peak = 0;
};

struct Head {
  uint64_t bytes;
  uint32_t owner;
  uint32_t shift;  // from the block's beginning to the caller's memory
};
static_assert(sizeof(Head) == 16);

std::array<Account, kMostRanks> g_accounts;
uint32_t g_driven = sim::HeapMeter::kNobody;

class Meter final : public sim::HeapMeter {
 public:
  uint32_t drive(uint32_t rank) override {
    return std::exchange(g_driven, rank < kMostRanks ? rank : kNobody);
  }
  uint64_t held(uint32_t rank) const override { return g_accounts[rank].held; }
  uint64_t peak(uint32_t rank) const override { return g_accounts[rank].peak; }
  void reset_peaks() override {
    for (Account& account : g_accounts) account.peak = account.held;
  }
};

void* take(size_t bytes, size_t alignment) {
  const size_t shift = alignment < sizeof(Head) ? sizeof(Head) : alignment;
  void* const block = alignment <= alignof(std::max_align_t)
                          ? std::malloc(bytes + shift)
                          : std::aligned_alloc(alignment, (bytes + 2 * shift - 1) / shift * shift);
  if (block == nullptr) throw std::bad_alloc();
  std::byte* const out = static_cast<std::byte*>(block) + shift;
  auto* const head = reinterpret_cast<Head*>(out) - 1;
  *head = {bytes, g_driven, static_cast<uint32_t>(shift)};
  if (head->owner != sim::HeapMeter::kNobody) {
    Account& account = g_accounts[head->owner];
    account.held += bytes;
    if (account.held > account.peak) account.peak = account.held;
  }
  return out;
}

void give(void* memory) noexcept {
  if (memory == nullptr) return;
  auto* const head = static_cast<Head*>(memory) - 1;
  if (head->owner != sim::HeapMeter::kNobody) g_accounts[head->owner].held -= head->bytes;
  std::free(static_cast<std::byte*>(memory) - head->shift);
}

}  // namespace

sim::HeapMeter& heap_meter() {
  static Meter meter;
  return meter;
}

}  // namespace mcast

// The other standard forms call these.
void* operator new(size_t bytes) { return mcast::take(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return mcast::take(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { mcast::give(memory); }
void operator delete(void* memory, size_t) noexcept { mcast::give(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { mcast::give(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { mcast::give(memory); }
