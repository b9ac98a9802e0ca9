// Status: the only form of errors inside mcast_core. Values, never exceptions; csrc/torch converts
// them to Python exceptions once. A Status that is ok() holds no allocation. Thread-safe to copy
// (immutable, shared).
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/types.h"

namespace mcast {

enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,    // the caller's mistake: shape, size, root, option
  kTimeout,            // a rank was late beyond the op's limit
  kPeerLost,           // a rank is dead or silent beyond the liveness limit
  kMismatch,           // ranks called different operations
  kAborted,            // abort() here or on another rank
  kClosed,             // the group was closed, or poisoned by an earlier failure
  kUnavailable,        // a transport or resource cannot be used here; a fallback may exist
  kResourceExhausted,  // descriptors, memory, memberships
  kSystem,             // an operating system call failed
  kInternal,           // a bug in torch-mcast
};

// "3.1 s", for messages.
std::string seconds_text(Nanos time);

// Stable lower-case name ("timeout", "peer_lost", ...).
const char* code_name(Code code) noexcept;

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string message);

  // Appends ": strerror(err)" to message.
  static Status system(int err, std::string message);

  bool ok() const noexcept { return rep_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  Code code() const noexcept { return rep_ ? rep_->code : Code::kOk; }
  // Empty when ok().
  const std::string& message() const noexcept;
  // "peer_lost: rank 3 ..." or "ok".
  std::string to_string() const;
  // The same code with `prefix: ` before the message; ok() stays ok().
  Status with_context(const std::string& prefix) const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

// A value or the Status that gives the reason why there is none. value() on an error is a
// programming error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT: implicit

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace mcast
