// EpochChain: a sender's keys, one after the other. Each step replaces the chain's key by one
// derived from it and wipes the old one: an attacker who learns only a later key cannot open
// earlier data. Therefore no input of the first key's derivation may be kept. The key is stored in
// pages for secrets; libcrypto keeps an epoch's key schedule on its heap (docs/security.md).
#pragma once

#include <utility>

#include "base/status.h"
#include "crypto/arena.h"
#include "crypto/kdf.h"

namespace mcast::crypto {

class EpochChain {
 public:
  // Fails if no pages are available for it.
  static Result<EpochChain> make(Key first, Suite suite) {
    Result<SecretKey> key = SecretKey::make(std::move(first));
    if (!key.ok()) return key.status();
    return EpochChain(std::move(key).value(), suite);
  }
  EpochChain(EpochChain&&) noexcept = default;
  EpochChain& operator=(EpochChain&&) noexcept = default;

  uint32_t epoch() const noexcept { return epoch_; }
  Suite suite() const noexcept { return suite_; }
  void step() noexcept {
    *key_ = next_chain(*key_);
    ++epoch_;
  }
  EpochKey current() const noexcept { return epoch_key(*key_, suite_); }
  Result<EpochChain> clone() const {
    Result<EpochChain> copy = make((*key_).clone(), suite_);
    if (copy.ok()) copy->epoch_ = epoch_;
    return copy;
  }

 private:
  EpochChain(SecretKey key, Suite suite) noexcept : key_(std::move(key)), suite_(suite) {}
  SecretKey key_;
  Suite suite_;
  uint32_t epoch_ = 0;
};

// Age of a sender's epoch. Not thread-safe.
class EpochAge {
 public:
  explicit EpochAge(Nanos limit) : limit_(limit) {}
  void look(Nanos now) noexcept {
    if (begun_ == kNever) begun_ = now;
    latest_ = now;
  }
  bool over() const noexcept { return begun_ != kNever && latest_ - begun_ >= limit_; }
  void begin() noexcept { begun_ = latest_; }

 private:
  Nanos limit_, begun_ = kNever, latest_ = kNever;
};

// The context that opens, or seals, under one epoch's key.
template <typename Context>
struct Keyed {
  Context context;
  Nonce iv;

  static Result<Keyed> make(const EpochChain& chain) {
    const EpochKey key = chain.current();
    auto context = Context::make(chain.suite(), key.key.bytes().first(key_size(chain.suite())));
    if (!context.ok()) return context.status();
    return Keyed{std::move(context).value(), key.iv};
  }
};

}  // namespace mcast::crypto
