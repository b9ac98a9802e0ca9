// Waits for a state that another thread or process produces.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace mcast::test {

// Returns true once `condition` holds. Fails the test if it does not hold within a minute; `what`
// names the condition. The limit only ends a test that hangs, however busy the machine is.
template <typename Condition>
bool until(Condition condition, const std::string& what) {
  constexpr auto kGuard = std::chrono::seconds(60);
  const auto end = std::chrono::steady_clock::now() + kGuard;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "waited 60 s for: " << what;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace mcast::test
