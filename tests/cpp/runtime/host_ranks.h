// Groups of ranks that share a host's memory, for tests of the whole engine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "support/ranks/programs.h"

namespace mcast::test {

inline const std::map<std::string, std::string> kShared{{"shared_memory", "auto"},
                                                        {"liveness_limit", "1000"}};

inline std::shared_ptr<Group> host_group(const std::string& name, Member rank, uint32_t ranks,
                                         KeyValueStore& store) {
  auto group = make_group(name, rank, ranks, store, kShared);
  if (group) {
    EXPECT_EQ(group->stats().path, "shared memory") << group->stats().reason;
  }
  return group;
}

// Helps until it is over, like a caller that waits.
inline Status help_through(Group& group, LaneId lane,
                           const std::function<Result<Sequence>(PostOptions)>& post) {
  auto over = std::make_shared<std::atomic<bool>>(false);
  auto status = std::make_shared<Status>();
  PostOptions options;
  options.timeout = 20 * kSecond;
  options.done = [over, status](const Status& s) {
    *status = s;
    over->store(true);
  };
  if (auto posted = post(std::move(options)); !posted.ok()) return posted.status();
  while (!over->load()) {
    if (!group.help(
            lane, [&] { return over->load(); }, monotonic_now() + 100 * kMilli)) {
      std::this_thread::yield();
    }
  }
  return *status;
}

}  // namespace mcast::test
