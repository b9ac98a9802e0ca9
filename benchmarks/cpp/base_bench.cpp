// The cost of one datagram in the lowest layer: its checksum (alone, and with the copy that places
// the payload) and its bit. Sizes: 1408 and 8896 bytes are the chunks of MTUs of 1500 and 9000
// bytes.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/bitmap.h"
#include "base/checksum.h"
#include "base/rng.h"
#include "base/streaming_copy.h"

namespace mcast {
namespace {

std::vector<std::byte> random_bytes(size_t size) {
  Rng rng(1);
  std::vector<std::byte> data(size);
  for (std::byte& b : data) b = static_cast<std::byte>(rng.next());
  return data;
}

void set_bytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}

void BM_Crc32c(benchmark::State& state) {
  const auto data = random_bytes(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(data));
  set_bytes(state);
}
BENCHMARK(BM_Crc32c)->Arg(32)->Arg(1408)->Arg(8896)->Arg(65536);

void BM_Memcpy(benchmark::State& state) {
  const auto from = random_bytes(static_cast<size_t>(state.range(0)));
  std::vector<std::byte> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
BENCHMARK(BM_Memcpy)->Arg(1408)->Arg(8896);

// Copies first and then verifies the copy, as placement must.
void BM_MemcpyThenCrc32c(benchmark::State& state) {
  const auto from = random_bytes(static_cast<size_t>(state.range(0)));
  std::vector<std::byte> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(crc32c(to));
  }
  set_bytes(state);
}
BENCHMARK(BM_MemcpyThenCrc32c)->Arg(1408)->Arg(8896);

// Copies chunks from a receive buffer into a tensor that is not in any cache.
template <typename Copy>
void place(benchmark::State& state, Copy copy) {
  constexpr size_t kTensor = 64u << 20, kBuffer = 64u << 10;
  const auto chunk = static_cast<size_t>(state.range(0));
  const auto from = random_bytes(kBuffer);
  std::vector<std::byte> to(kTensor);
  size_t source = 0, target = 0;
  for (auto _ : state) {
    copy(to.data() + target, from.data() + source, chunk);
    source = source + 2 * chunk <= kBuffer ? source + chunk : 0;
    target = target + 2 * chunk <= kTensor ? target + chunk : 0;
  }
  set_bytes(state);
}
void BM_PlaceThroughCaches(benchmark::State& state) {
  place(state, [](std::byte* to, const std::byte* from, size_t n) { std::memcpy(to, from, n); });
}
void BM_PlacePastCaches(benchmark::State& state) { place(state, streaming_copy); }
BENCHMARK(BM_PlaceThroughCaches)->Arg(1408)->Arg(8896);
BENCHMARK(BM_PlacePastCaches)->Arg(1408)->Arg(8896);

// The memory bandwidth of threads that only copy tensors past the caches, as ranks of a host copy
// from each other's arenas: shared memory, so small pages. It bounds an all_gather there.
void BM_CopyOfTensors(benchmark::State& state) {
  constexpr size_t kTensor = 64u << 20, kPiece = 256u << 10;
  const auto map = [] {
    void* const at = ::mmap(nullptr, kTensor, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  };
  std::byte *const from = map(), *const to = map();
  if (from == nullptr || to == nullptr) return state.SkipWithError("no memory");
  size_t at = 0;
  for (auto _ : state) {
    streaming_copy_from_memory(to + at, from + at, kPiece);
    at = (at + kPiece) % kTensor;
  }
  streaming_fence();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kPiece));
  ::munmap(from, kTensor);
  ::munmap(to, kTensor);
}
BENCHMARK(BM_CopyOfTensors)->Threads(1)->Threads(2)->Threads(4)->UseRealTime();

// Sets every bit of a map once in the given order; the map is created outside the timing. The
// argument is the number of bits.
void set_in_order(benchmark::State& state, const std::vector<uint32_t>& order) {
  for (auto _ : state) {
    state.PauseTiming();
    Bitmap bitmap(order.size());
    state.ResumeTiming();
    for (const uint32_t i : order) benchmark::DoNotOptimize(bitmap.test_and_set(i));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}

std::vector<uint32_t> ascending(const benchmark::State& state) {
  std::vector<uint32_t> order(static_cast<size_t>(state.range(0)));
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

void BM_BitmapSequential(benchmark::State& state) { set_in_order(state, ascending(state)); }
BENCHMARK(BM_BitmapSequential)->Arg(1 << 16)->Arg(1 << 22);

void BM_BitmapRandom(benchmark::State& state) {
  auto order = ascending(state);
  Rng rng(2);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  set_in_order(state, order);
}
BENCHMARK(BM_BitmapRandom)->Arg(1 << 16)->Arg(1 << 22);

// Searches for gaps in a map in which every 1000th bit is clear.
void BM_BitmapClearRanges(benchmark::State& state) {
  const auto n = static_cast<uint64_t>(state.range(0));
  Bitmap bitmap(n);
  for (uint64_t i = 0; i < n; ++i) {
    if (i % 1000 != 0) bitmap.test_and_set(i);
  }
  for (auto _ : state) {
    uint64_t clear = 0;
    bitmap.for_each_clear_range(0, n, SIZE_MAX, [&](ChunkRange range) { clear += range.size(); });
    benchmark::DoNotOptimize(clear);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK(BM_BitmapClearRanges)->Arg(1 << 16);

}  // namespace
}  // namespace mcast
