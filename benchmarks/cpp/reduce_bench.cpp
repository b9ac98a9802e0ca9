// Folds one contribution into the accumulator, for every valid pair of element type and operator:
// GB/s of source bytes, compared with memcpy. Sizes: a segment as it arrives (in the cache), and
// one far larger than the caches. benchmarks/reduce_kernels.py adds torch's figures.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/reduce_kernels.h"

namespace mcast {
namespace {

constexpr int64_t kSegment = 60 << 10, kLarge = 16 << 20;

void fold(benchmark::State& state, Element e, Reduction r) {
  const size_t count = static_cast<size_t>(state.range(0)) / element_size(e);
  std::vector<std::byte> source(count * element_size(e)), acc(count * accumulator_size(e));
  for (auto _ : state) {
    fold_next(e, r, 0.5, source.data(), acc.data(), count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy(benchmark::State& state) {
  std::vector<std::byte> a(static_cast<size_t>(state.range(0))), b(a.size());
  for (auto _ : state) {
    std::memcpy(b.data(), a.data(), a.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(copy)->Name("memcpy")->Arg(kSegment)->Arg(kLarge);

[[maybe_unused]] const bool registered = [] {
  for (int e = 1; e <= static_cast<int>(Element::kBool); ++e) {
    for (int r = 1; r <= static_cast<int>(Reduction::kPremulSum); ++r) {
      const auto element = static_cast<Element>(e);
      const auto reduction = static_cast<Reduction>(r);
      if (!reducible(element, reduction)) continue;
      const std::string name =
          std::string("fold/") + element_name(element) + "/" + reduction_name(reduction);
      auto* row = benchmark::RegisterBenchmark(name.c_str(), fold, element, reduction);
      row->Arg(kSegment);
      if (reduction == Reduction::kSum) row->Arg(kLarge);
    }
  }
  return true;
}();

}  // namespace
}  // namespace mcast
