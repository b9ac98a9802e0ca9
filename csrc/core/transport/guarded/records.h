// The two directions of a guarded connection after its handshake: one seals, the other opens. Used
// by one thread.
#pragma once

#include <optional>
#include <utility>

#include "crypto/handshake.h"
#include "crypto/stream_guard.h"

namespace mcast::guarded {

class Records {
 public:
  Status start(crypto::StreamChains chains, const crypto::EpochLimits& limits) {
    auto sealer =
        crypto::RecordSealer::make(std::move(chains.seal), chains.suite, chains.mode, limits);
    auto opener =
        crypto::RecordOpener::make(std::move(chains.open), chains.suite, chains.mode, limits);
    if (!sealer.ok()) return sealer.status();
    if (!opener.ok()) return opener.status();
    sealer_.emplace(std::move(sealer).value());
    opener_.emplace(std::move(opener).value());
    return {};
  }
  // After start(); as RecordSealer and RecordOpener.
  bool seal(std::optional<uint32_t> number, crypto::Parts body, std::byte* out) {
    return sealer_->seal(number, body, out);
  }
  void age(Nanos now) { sealer_->age(now); }
  std::optional<ConstBytes> open(bool striped, ConstBytes record, Bytes scratch) {
    return opener_->open(striped, record, scratch);
  }
  uint32_t epoch() const { return sealer_->epoch(); }  // of the sealing direction

 private:
  std::optional<crypto::RecordSealer> sealer_;
  std::optional<crypto::RecordOpener> opener_;
};

}  // namespace mcast::guarded
