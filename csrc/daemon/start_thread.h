// Starts threads of an engine on behalf of clients: if no thread can be started, that client is
// refused, and the engine continues.
#pragma once

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/signals_blocked.h"
#include "base/status.h"

namespace mcast::service {

// Like named_thread(). kResourceExhausted if none can be started; `into` is unchanged then.
inline Status start_thread(std::thread& into, const char* name, std::function<void()> run) {
  try {
    into = named_thread(name, std::move(run));
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, std::string("cannot start a thread: ") + error.what());
  }
  return {};
}

}  // namespace mcast::service
