// What a device's error is called in messages.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace mcast::pg {

// Its first line. Torch's CUDA errors have a backtrace of torch's own, and lines of advice that
// holds for no other rank; all ranks are told.
inline std::string said(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      of_torch != nullptr ? of_torch->what_without_backtrace() : std::string(error.what());
  return text.substr(0, text.find('\n'));
}

}  // namespace mcast::pg
