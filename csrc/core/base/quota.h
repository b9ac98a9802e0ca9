// Limits the number of units in use at once, for all users of the quota.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"

namespace mcast {

// Thread-safe.
class Quota : public std::enable_shared_from_this<Quota> {
 public:
  // `what`: name of the units, for the error when none is left.
  Quota(uint32_t most, std::string what) : most_(most), what_(std::move(what)) {}

  // The units are taken until the result is destroyed. kResourceExhausted: fewer than `count` are
  // left.
  Result<std::shared_ptr<void>> take(uint32_t count) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (count > most_ - taken_) return Status(Code::kResourceExhausted, what_);
    taken_ += count;
    return std::shared_ptr<void>(
        nullptr, [quota = shared_from_this(), count](void*) { quota->give(count); });
  }
  uint32_t taken() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return taken_;
  }

 private:
  void give(uint32_t count) {
    const std::lock_guard<std::mutex> held(mutex_);
    taken_ -= count;
  }

  const uint32_t most_;
  const std::string what_;
  mutable std::mutex mutex_;
  uint32_t taken_ = 0;
};

}  // namespace mcast
