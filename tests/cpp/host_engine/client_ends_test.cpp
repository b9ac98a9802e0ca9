// Every post of an engine's client ends and is reported once: beside posts of other threads, when
// the group is destroyed right after it, and when the engine is lost before anyone listens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "engine_process.h"
#include "host_engine/client/client_link.h"
#include "support/ranks/arena_new.h"
#include "support/ranks/message_ranks.h"
#include "support/ranks/programs.h"
#include "support/until.h"

namespace mcast::test {
namespace {

std::shared_ptr<Group> client(const EngineProcess& engine, Member rank, DirectoryStore& store,
                              const char* setting) {
  // A destroyed group waits for as long as `linger`; an engine may get no CPU for some seconds.
  return make_group("ends", rank, 2, store,
                    {{"engine", engine.setting()},
                     {"engine_memory", setting},
                     {"shared_memory", kSharedMemory},
                     {"linger", "60000"}});
}

// A message's progress must not be submitted before the message: every thread that posts feeds all
// messages.
TEST(ClientEnds, ThreadsThatPostAtOnceDoNotOvertakeEachOther) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 100, [&](Member rank, DirectoryStore& store) {
    auto group = client(engine, rank, store, "slots");
    if (!group) return false;
    // Short messages are over at once, and a thread that posts one feeds the long ones of the other
    // threads.
    constexpr size_t kThreads = 6, kMessages = 400;
    std::atomic<size_t> good{0};
    std::vector<std::thread> threads;
    for (uint32_t tag = 0; tag < kThreads; tag++) {
      threads.emplace_back([&, tag] {
        const size_t bytes = tag % 2 == 0 ? 70'000 : 100;
        for (size_t i = 0; i < kMessages; i++) {
          const auto m = post_one(*group, rank == 1, 1 - rank, tag, bytes, tag + i, 10 * kSecond);
          const Status status = m->end.get();
          if (!status.ok() || !holds(m->bytes, 0, bytes, tag + i)) {
            ADD_FAILURE() << "tag " << tag << ", message " << i << ": " << status.to_string();
            return;
          }
          good++;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return good == kThreads * kMessages && group->close(5 * kSecond).ok();
  }));
}

// A group that is destroyed waits until the others have what they need; then all its posts have
// ended.
TEST(ClientEnds, PostsInFlightEndBeforeTheGroupIsDestroyed) {
  EngineProcess engine;
  for (const char* setting : {"slots", "map", "copy"}) {
    SCOPED_TRACE(setting);
    expect_all_good(run_ranks(2, 100, [&](Member rank, DirectoryStore& store) {
      if (std::string(setting) == "map") new_in_arenas();
      for (int round = 0; round < 20; round++) {
        auto own = store.scoped(std::to_string(round));
        auto group = client(engine, rank, own, setting);
        if (!group) return false;
        std::vector<std::shared_ptr<EngineMessage>> all;
        for (uint32_t i = 0; i < 30; i++) {
          all.push_back(post_one(*group, rank == 1, 1 - rank, i, 5'000 * i, i));
        }
        group.reset();
        for (uint32_t i = 0; i < 30; i++) {
          if (all[i]->end.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
            return ADD_FAILURE() << "round " << round << ": message " << i << " flies", false;
          }
          const Status status = all[i]->end.get();
          EXPECT_TRUE(status.ok()) << status.to_string();
          EXPECT_TRUE(holds(all[i]->bytes, 0, 5'000 * i, i)) << "message " << i;
        }
        if (testing::Test::HasFailure()) return false;
      }
      return true;
    }));
  }
}

TEST(ClientEnds, LateListenerIsNotifiedOfTheLostEngine) {
  class Listener final : public ClientListener {
   public:
    void on_completed(ipc::Completed) override {}
    void on_lost(const Status& why) override { told.push_back(why.message()); }
    std::vector<std::string> told;
  };
  EngineProcess engine;
  auto link = ClientLink::connect(engine.path(), 10 * kSecond);
  ASSERT_TRUE(link.ok()) << link.status().to_string();
  EXPECT_EQ(engine.end(SIGKILL), -SIGKILL);
  ASSERT_TRUE(until([&] { return !(*link)->lost().ok(); }, "the lost link to be noticed"));
  const auto listener = std::make_shared<Listener>();
  (*link)->listen(1, listener);
  ASSERT_EQ(listener->told.size(), 1u);
  EXPECT_THAT(listener->told[0], testing::HasSubstr("engine of this host (process "));
}

}  // namespace
}  // namespace mcast::test
