// Inputs of a client on their way to where its engine reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/client_staging.h"

namespace mcast {

// Of one post. Thread-safe: one thread at a time copies.
class ClientFeed {
 public:
  static constexpr size_t kAtOnce = size_t{64} << 10;  // bytes that are copied before the record
  static constexpr size_t kPiece = size_t{1} << 20;    // between two words of how far it is

  // Before the record is written: copies what is short. False: not all is there, next() goes on.
  static bool begin(ClientStaging& staging) {
    bool whole = staging.input_bytes() <= kAtOnce;
    for (size_t i = 0; whole && i < staging.inputs(); i++) {
      (void)staging.copy_in(i, kAtOnce);
      whole = staging.whole(i);
    }
    return whole;
  }

  // Copies what can be read; `tell`: that so many bytes of an input are there; false: nobody hears
  // it. Returns false if not all inputs are there.
  bool next(const std::unique_ptr<ClientStaging>& staging,
            const std::function<bool(uint32_t input, uint64_t bytes)>& tell) {
    const std::lock_guard<std::mutex> one(mutex_);
    while (!over_ && input_ < staging->inputs()) {
      const uint64_t before = told_;
      const uint64_t there = staging->copy_in(input_, kPiece);
      const bool whole = staging->whole(input_);
      if ((there > before || whole) && !tell(static_cast<uint32_t>(input_), there)) return true;
      told_ = whole ? 0 : there;
      if (whole) input_++;
      if (!whole && there == before) return false;
    }
    return true;
  }
  // The engine is done with it: the staging is looked at no more.
  void end() {
    const std::lock_guard<std::mutex> one(mutex_);
    over_ = true;
  }

 private:
  std::mutex mutex_;
  size_t input_ = 0;
  uint64_t told_ = 0;  // of that input
  bool over_ = false;
};

}  // namespace mcast
