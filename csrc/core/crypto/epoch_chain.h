// EpochChain: a sender's keys, one after the other. Each step replaces the chain's key by one that
// follows from it and wipes the old: who learns a later one cannot open what went before.
#pragma once

#include <utility>

#include "crypto/kdf.h"

namespace mcast::crypto {

class EpochChain {
 public:
  EpochChain(Key first, Suite suite) noexcept : key_(std::move(first)), suite_(suite) {}
  EpochChain(EpochChain&&) noexcept = default;
  EpochChain& operator=(EpochChain&&) noexcept = default;

  uint32_t epoch() const noexcept { return epoch_; }
  Suite suite() const noexcept { return suite_; }
  void step() noexcept {
    key_ = next_chain(key_);
    ++epoch_;
  }
  EpochKey current() const noexcept { return epoch_key(key_, suite_); }
  EpochChain clone() const noexcept {
    EpochChain copy(key_.clone(), suite_);
    copy.epoch_ = epoch_;
    return copy;
  }

 private:
  Key key_;
  Suite suite_;
  uint32_t epoch_ = 0;
};

// What opens, or seals, under one epoch's key.
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
