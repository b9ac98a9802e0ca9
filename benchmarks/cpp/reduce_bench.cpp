// Folding one contribution into the accumulator, per element type: GB/s of source bytes, beside
// plain memcpy.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "base/reduce_kernels.h"

namespace mcast {
namespace {

void Fold(benchmark::State& state, Element e, Reduction r) {
  const size_t count = static_cast<size_t>(state.range(0)) / element_size(e);
  std::vector<std::byte> source(count * element_size(e)), acc(count * accumulator_size(e));
  for (auto _ : state) {
    fold_next(e, r, 0.5, source.data(), acc.data(), count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(Fold, float32_sum, Element::kFloat32, Reduction::kSum)
    ->Arg(60 << 10)
    ->Arg(16 << 20);
BENCHMARK_CAPTURE(Fold, float64_sum, Element::kFloat64, Reduction::kSum)->Arg(60 << 10);
BENCHMARK_CAPTURE(Fold, bfloat16_sum, Element::kBFloat16, Reduction::kSum)
    ->Arg(60 << 10)
    ->Arg(16 << 20);
BENCHMARK_CAPTURE(Fold, float16_sum, Element::kFloat16, Reduction::kSum)->Arg(60 << 10);
BENCHMARK_CAPTURE(Fold, int32_sum, Element::kInt32, Reduction::kSum)->Arg(60 << 10);
BENCHMARK_CAPTURE(Fold, int8_sum, Element::kInt8, Reduction::kSum)->Arg(60 << 10);
BENCHMARK_CAPTURE(Fold, float32_max, Element::kFloat32, Reduction::kMax)->Arg(60 << 10);
BENCHMARK_CAPTURE(Fold, float32_premul_sum, Element::kFloat32, Reduction::kPremulSum)
    ->Arg(60 << 10);

void Memcpy(benchmark::State& state) {
  std::vector<std::byte> a(static_cast<size_t>(state.range(0))), b(a.size());
  for (auto _ : state) {
    std::memcpy(b.data(), a.data(), a.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Memcpy)->Arg(60 << 10)->Arg(16 << 20);

}  // namespace
}  // namespace mcast
