// Status keeps code and message in one shared immutable block, so that an error that fails many
// waiting operations is copied by reference count, and the ok path is a null pointer.
#include "base/status.h"

#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace mcast {

std::string seconds_text(Nanos time) {
  return decimal_text(static_cast<double>(time) / 1e9, 1) + " s";
}

const char* code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerLost:
      return "peer_lost";
    case Code::kMismatch:
      return "mismatch";
    case Code::kAborted:
      return "aborted";
    case Code::kClosed:
      return "closed";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kSystem:
      return "system";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) rep_ = std::make_shared<const Rep>(Rep{code, std::move(message)});
}

Status Status::system(int err, std::string message) {
  const Code code = (err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS)
                        ? Code::kResourceExhausted
                        : Code::kSystem;
  return Status(code, std::move(message) + ": " + std::strerror(err));
}

const std::string& Status::message() const noexcept {
  static const std::string* const kEmpty = new std::string;
  return rep_ ? rep_->message : *kEmpty;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(code_name(code())) + ": " + message();
}

Status Status::with_context(const std::string& prefix) const {
  if (ok()) return *this;
  return Status(code(), prefix + ": " + message());
}

}  // namespace mcast
