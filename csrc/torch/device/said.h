// Formats a device's error for messages.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace mcast::pg {

// Returns the first line. Torch's CUDA errors continue with a backtrace of torch's own and lines of
// advice that apply to no other rank; the text is sent to all ranks.
inline std::string said(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      of_torch != nullptr ? of_torch->what_without_backtrace() : std::string(error.what());
  return text.substr(0, text.find('\n'));
}

}  // namespace mcast::pg
