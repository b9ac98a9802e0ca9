// ClientFeed: copies a client's inputs to memory that its engine reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "host_engine/client/client_staging.h"

namespace mcast {

// Inputs of one post. Thread-safe: one thread at a time copies.
class ClientFeed {
 public:
  // Bytes that are copied before the record is sent.
  static constexpr size_t kAtOnce = size_t{64} << 10;
  static constexpr size_t kPiece = size_t{1} << 20;  // bytes between two progress notifications

  // Called before the record is written: copies short inputs. Returns false if some input is not
  // complete; next() continues.
  static bool begin(ClientStaging& staging) {
    bool whole = staging.input_bytes() <= kAtOnce;
    for (size_t i = 0; whole && i < staging.inputs(); i++) {
      (void)staging.copy_in(i, kAtOnce);
      whole = staging.whole(i);
    }
    return whole;
  }

  // Copies all bytes that can be read. `tell` reports the bytes of an input copied so far, and
  // returns false if nobody receives the report. Returns false if not all inputs are complete.
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
  // The engine has finished with the post: the staging is not accessed any more.
  void end() {
    const std::lock_guard<std::mutex> one(mutex_);
    over_ = true;
  }

 private:
  std::mutex mutex_;
  size_t input_ = 0;
  uint64_t told_ = 0;  // bytes of that input reported so far
  bool over_ = false;
};

}  // namespace mcast
