// One message of AES-128-GCM with either library; the cost of a chunk under each mode and suite,
// sealing and opening, beside the checksum of an unguarded chunk (wire_bench); the cost of a
// stranger's datagram; and the cost of a new connection.
#include <benchmark/benchmark.h>

#include <array>
#include <string>
#include <vector>

#include "crypto/aead.h"
#include "crypto/datagram_guard.h"
#include "crypto/handshake.h"
#include "crypto/library.h"

namespace mcast::crypto {
namespace {

std::unique_ptr<DatagramGuard> bench_guard(const benchmark::State& state, Member self) {
  if (!load_library().ok()) return nullptr;
  DatagramGuard::Params params;
  params.how = {static_cast<Mode>(state.range(1)), static_cast<Suite>(state.range(2)), 0};
  params.self = self;
  params.members = 2;
  params.most_payload = 1 << 16;
  auto made = DatagramGuard::make(root_key(std::vector<std::byte>(32)), params,
                                  std::make_shared<OpenBudget>());
  return made.ok() ? std::move(made).value() : nullptr;
}

void label(benchmark::State& state) {
  state.SetLabel(std::string(mode_name(static_cast<Mode>(state.range(1)))) + " " +
                 suite_name(static_cast<Suite>(state.range(2))));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// With libcrypto, and with the library that make() chooses here.
void SealMessage(benchmark::State& state) {
  if (!load_library().ok()) return state.SkipWithError("no libcrypto");
  const std::vector<std::byte> key(16), text(static_cast<size_t>(state.range(0)), std::byte{3});
  auto context = state.range(1) == 0 ? SealContext::by_libcrypto(Suite::kAes128Gcm, key)
                                     : SealContext::make(Suite::kAes128Gcm, key);
  if (!context.ok()) return state.SkipWithError("no AES-128-GCM");
  std::vector<std::byte> out(text.size());
  std::array<std::byte, kTagSize> tag;
  const ConstBytes whole = text, aad = ConstBytes(key).first(16);
  uint64_t number = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        context->seal(make_nonce({}, ++number), aad, {&whole, 1}, out.data(), tag));
  }
  const std::string fast = fast_gcm_version();
  state.SetLabel(state.range(1) == 0 || fast.empty() ? "libcrypto" : fast);
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void SealChunk(benchmark::State& state) {
  const auto guard = bench_guard(state, 0);
  if (guard == nullptr) return state.SkipWithError("no libcrypto");
  const std::vector<std::byte> payload(static_cast<size_t>(state.range(0)), std::byte{3});
  std::vector<std::byte> out(payload.size() + 64);
  wire::DatagramHeader header;
  for (auto _ : state) {
    header.chunk++;
    benchmark::DoNotOptimize(guard->seal_key().seal(out, header, payload));
  }
  label(state);
}

void OpenChunk(benchmark::State& state) {
  const auto from = bench_guard(state, 0), to = bench_guard(state, 1);
  if (from == nullptr || to == nullptr) return state.SkipWithError("no libcrypto");
  const std::vector<std::byte> payload(static_cast<size_t>(state.range(0)), std::byte{3});
  std::vector<std::byte> out(payload.size() + 64);
  out.resize(from->seal_key().seal(out, {}, payload));
  for (auto _ : state) {
    wire::GuardedHeader read;
    ConstBytes text;
    if (wire::parse_guarded(out, read) != wire::ParseError::kNone ||
        to->judge(read, out, 0) != DatagramVerdict::kVerified ||
        to->open(read, out, text, 0) != DatagramVerdict::kVerified) {
      return state.SkipWithError("does not open");
    }
    benchmark::DoNotOptimize(text.data());
  }
  label(state);
}

// A datagram whose sender does not have the keys: the cost of a flood per datagram.
void RefuseStranger(benchmark::State& state) {
  const auto from = bench_guard(state, 0), to = bench_guard(state, 1);
  if (from == nullptr || to == nullptr) return state.SkipWithError("no libcrypto");
  const std::vector<std::byte> payload(static_cast<size_t>(state.range(0)), std::byte{3});
  std::vector<std::byte> out(payload.size() + 64);
  out.resize(from->seal_key().seal(out, {}, payload));
  out[0] ^= std::byte{1};
  wire::GuardedHeader read;
  for (auto _ : state) {
    benchmark::DoNotOptimize(wire::parse_guarded(out, read));
    benchmark::DoNotOptimize(to->judge(read, out, 0));
  }
  label(state);
}

void chunk_arguments(benchmark::internal::Benchmark* bench) {
  for (const int64_t size : {1408, 4032, 8896}) {
    for (const int64_t mode : {1, 2}) {
      for (const int64_t suite : {1, 3}) bench->Args({size, mode, suite});
    }
  }
}
BENCHMARK(SealMessage)->ArgsProduct({{60, 1408, 4032, 8896, 65536}, {0, 1}});
BENCHMARK(SealChunk)->Apply(chunk_arguments);
BENCHMARK(OpenChunk)->Apply(chunk_arguments);
BENCHMARK(RefuseStranger)->Args({1408, 2, 1});

Identity bench_end(unsigned number) {
  std::array<std::byte, 32> random;
  random.fill(static_cast<std::byte>(number));
  const Key root = root_key(std::vector<std::byte>(32));
  return {Mode::kSealed, suite_bit(Suite::kAes128Gcm),
          Role::kRank,   hello_key(root),
          mix_key(root), std::move(KeyPair::make(random)).value()};
}

// Both ends of one connection and all four messages. With `range(0)` 1, only a stranger's Hello.
void ShakeHands(benchmark::State& state) {
  if (!load_library().ok()) return state.SkipWithError("no libcrypto");
  const Identity one = bench_end(1), two = bench_end(2);
  for (auto _ : state) {
    Acceptor acceptor(one, {});
    HelloBytes hello{};
    if (state.range(0) == 1) {
      hello[4] = std::byte{2};
      benchmark::DoNotOptimize(acceptor.check_hello(hello));
      continue;
    }
    Connector connector(two, one.pair.public_key());
    AckBytes ack;
    ConfirmBytes confirm;
    const std::array<std::byte, kHelloHead> hello_head{};
    const std::array<std::byte, kAckHead> ack_head{};
    (void)connector.hello(acceptor.challenge(), hello_head, {}, hello);
    (void)acceptor.check_hello(hello);
    (void)acceptor.answer(ack_head, ack);
    (void)connector.check_ack(ack, confirm);
    if (acceptor.check_confirm(confirm) != HandshakeError::kNone) {
      return state.SkipWithError("no connection");
    }
  }
}
BENCHMARK(ShakeHands)->Arg(0)->Arg(1);

}  // namespace
}  // namespace mcast::crypto
