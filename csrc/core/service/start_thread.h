// Threads of an engine that clients cause: where none can be had, one of them is refused, and the
// engine goes on.
#pragma once

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/signals_blocked.h"
#include "base/status.h"

namespace mcast::service {

// As named_thread(). kResourceExhausted: none can be had; `into` is as it was.
inline Status start_thread(std::thread& into, const char* name, std::function<void()> run) {
  try {
    into = named_thread(name, std::move(run));
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, std::string("cannot start a thread: ") + error.what());
  }
  return {};
}

}  // namespace mcast::service
