// Counts the threads of the core in this process.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace mcast::test {

// Returns the number of threads that named_thread() started. Other threads, such as those of a
// sanitizer, start and end independently.
inline size_t core_threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return static_cast<size_t>(std::count_if(begin(all), end(all), [](const auto& task) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    return name.rfind("mcast-", 0) == 0;
  }));
}

}  // namespace mcast::test
