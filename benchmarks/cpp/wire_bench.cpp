// Codec and receive protocol per chunk: the cost of a datagram before and after its bytes are
// copied.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/counters.h"
#include "protocol/block_receiver.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast {
namespace {

std::vector<std::byte> chunk_datagram(Chunk chunk, size_t payload) {
  std::vector<std::byte> bytes(wire::kDatagramHeader + payload, std::byte{7});
  const std::vector<std::byte> data(payload, std::byte{9});
  wire::DatagramHeader h;
  h.group_tag = 42;
  h.chunk = chunk;
  wire::write_datagram(bytes, h, data);
  return bytes;
}

// Writes header, payload copy and checksum into the send batch.
void WriteDatagram(benchmark::State& state) {
  const std::vector<std::byte> payload(static_cast<size_t>(state.range(0)), std::byte{3});
  std::vector<std::byte> datagram(wire::kDatagramHeader + payload.size());
  wire::DatagramHeader h;
  for (auto _ : state) {
    h.chunk++;
    benchmark::DoNotOptimize(wire::write_datagram(datagram, h, payload));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(WriteDatagram)->Arg(1408)->Arg(8896);

void VerifyDatagram(benchmark::State& state) {
  const auto bytes = chunk_datagram(1, static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(wire::verify_datagram(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(VerifyDatagram)->Arg(1408)->Arg(8896);

// Parsing, bounds, test-and-set of the bitmap, loss bookkeeping and counters, without checksum and
// copy. Chunks are in order or in a pseudo-random order.
void ReceiveProtocolPerChunk(benchmark::State& state) {
  constexpr Chunk kMany = 1u << 20;
  auto bytes = chunk_datagram(0, 64);
  BlockReceiver receiver(kMany, {});
  const bool random = state.range(0) == 1;
  Counters counters;
  Chunk i = 0;
  for (auto _ : state) {
    if (i == kMany) {
      state.PauseTiming();
      receiver = BlockReceiver(kMany, {});
      i = 0;
      state.ResumeTiming();
    }
    const Chunk chunk = random ? (i * 2654435761u) % kMany : i;
    __builtin_memcpy(bytes.data() + 24, &chunk, sizeof chunk);
    wire::DatagramHeader h;
    if (wire::parse_datagram(bytes, h) != wire::ParseError::kNone) std::abort();
    counters.add(Counter::datagrams_received);
    counters.add(Counter::datagram_bytes_received, bytes.size());
    if (h.member != 0 || h.chunk >= kMany || receiver.has(h.chunk)) std::abort();
    receiver.accept(h.chunk, true, i);
    counters.add(Counter::chunks_placed);
    i++;
  }
}
BENCHMARK(ReceiveProtocolPerChunk)->Arg(0)->Arg(1)->ArgName("random");

void CreditFrame(benchmark::State& state) {
  std::vector<wire::CreditEntry> entries(static_cast<size_t>(state.range(0)), {1, 2, 3, 4});
  std::vector<wire::CreditEntry> parsed;
  for (auto _ : state) {
    wire::Writer body;
    wire::put_credit(body, entries);
    benchmark::DoNotOptimize(wire::parse_credit(body.bytes(), parsed));
  }
}
BENCHMARK(CreditFrame)->Arg(1)->Arg(32);

}  // namespace
}  // namespace mcast
