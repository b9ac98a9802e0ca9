// The last store round of a creation in shared memory. The process that keeps the store may end as
// soon as it has the group, so it gets the group only when all ranks have it. A rank that misses
// the last round fails the creation on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <utility>
#include <vector>

#include "runtime/host_ranks.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

// Before a rank other than 0 receives the last key, it calls `before`, whose failure becomes the
// result.
class LastWordStore final : public KeyValueStore {
 public:
  LastWordStore(DirectoryStore& store, std::function<Status()> before)
      : store_(store), before_(std::move(before)) {}
  Status set(const std::string& key, const std::string& value) override {
    return store_.set(key, value);
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    auto values = store_.multi_get(keys, timeout);
    if (values.ok() && keys[0] == "shared/all") {
      if (Status status = before_(); !status.ok()) return status;
    }
    return values;
  }

 private:
  DirectoryStore& store_;
  const std::function<Status()> before_;
};

Result<std::shared_ptr<Group>> create(Member rank, KeyValueStore& store,
                                      std::function<bool()> interrupted = nullptr) {
  auto spec = group_spec("g", rank, 3, kShared);
  if (!spec) return Status(Code::kInternal, "no spec");
  spec->timeout = 20 * kSecond;
  spec->interrupted = std::move(interrupted);
  return Engine::instance().create_group(*spec, store);
}

TEST(HostCreation, StoreOwnerMayEndAtOnce) {
  expect_all_good(run_ranks(3, 60, [](Member rank, DirectoryStore& store) {
    LastWordStore late(store, [&] {
      usleep(100'000 * rank);
      return store.multi_get({"gone"}, 0).ok() ? Status(Code::kUnavailable, "the store is gone")
                                               : Status();
    });
    auto group = rank == 0 ? create(rank, store) : create(rank, late);
    EXPECT_TRUE(group.ok()) << group.status().to_string();
    if (!group.ok()) return false;
    EXPECT_EQ((*group)->stats().path, "shared memory");
    return (*group)->close(5 * kSecond).ok() && (rank != 0 || store.set("gone", "1").ok());
  }));
}

TEST(HostCreation, RankThatMissesTheFinalKeyFailsAll) {
  expect_all_good(run_ranks(3, 60, [](Member rank, DirectoryStore& store) {
    LastWordStore breaks(store, [] { return Status(Code::kUnavailable, "the store is gone"); });
    auto group = rank == 1 ? create(rank, breaks) : create(rank, store);
    EXPECT_FALSE(group.ok());
    EXPECT_THAT(group.status().message(), HasSubstr("the store is gone"));
    if (rank != 1) {
      EXPECT_THAT(group.status().message(), HasSubstr("rank 1"));
    }
    return !group.ok();
  }));
}

TEST(HostCreation, RankThatEndsBeforeTheFinalKeyIsNamed) {
  const auto ends = run_ranks(3, 60, [](Member rank, DirectoryStore& store) {
    LastWordStore last(store, []() -> Status { _exit(7); });
    auto group = rank == 1 ? create(rank, last) : create(rank, store);
    EXPECT_FALSE(group.ok());
    EXPECT_THAT(group.status().message(), HasSubstr("rank 1"));
    return !group.ok();
  });
  EXPECT_EQ(ends[1].exit_code, 7);
  EXPECT_EQ(ends[0].exit_code, 0);
  EXPECT_EQ(ends[2].exit_code, 0);
}

TEST(HostCreation, WaitForTheOthersCanBeInterrupted) {
  expect_all_good(run_ranks(3, 60, [](Member rank, DirectoryStore& store) {
    LastWordStore late(store, [&] { return store.multi_get({"over"}, 20 * kSecond).status(); });
    const Nanos until = monotonic_now() + 300 * kMilli;
    const auto interrupted = [=] { return rank == 0 && monotonic_now() > until; };
    auto group = rank == 1 ? create(rank, late) : create(rank, store, interrupted);
    EXPECT_TRUE(rank != 0 || store.set("over", "1").ok());
    EXPECT_FALSE(group.ok());
    EXPECT_THAT(group.status().message(), HasSubstr("interrupted"));
    return !group.ok();
  }));
}

// Rank 2 sleeps while it waits for rank 1; the others have failed the group when it checks again.
TEST(HostCreation, LaterFailureFailsTheGroupNotItsCreation) {
  expect_all_good(run_ranks(3, 60, [](Member rank, DirectoryStore& store) {
    LastWordStore late(store, [&] { return store.multi_get({"sleeps"}, 60 * kSecond).status(); });
    bool slept = rank != 2;
    const auto sleeps = [&] {
      if (std::exchange(slept, true)) return false;
      EXPECT_TRUE(store.set("sleeps", "").ok());
      return !store.multi_get({"failed/0", "failed/1"}, 60 * kSecond).ok();
    };
    auto group = rank == 1 ? create(rank, late) : create(rank, store, sleeps);
    EXPECT_TRUE(group.ok()) << group.status().to_string();
    if (!group.ok()) return false;
    EXPECT_TRUE(slept);
    std::vector<std::byte> bytes(300);
    const Status status = rank == 0 ? allgather(**group, bytes) : broadcast(**group, bytes, 2);
    EXPECT_EQ(status.code(), Code::kMismatch) << status.to_string();
    return store.set("failed/" + std::to_string(rank), "").ok() && !status.ok();
  }));
}

}  // namespace
}  // namespace mcast::test
