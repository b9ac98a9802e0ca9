// So many of something at once, for all who share the quota.
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
  // `what`: for the error of who gets nothing.
  Quota(uint32_t most, std::string what) : most_(most), what_(std::move(what)) {}

  // Until what it returns is destroyed. kResourceExhausted: there are not so many left.
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
