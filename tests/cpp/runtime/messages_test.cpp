// Messages through groups of the engine, over sockets on loopback and in shared memory; and
// refusals before anything is sent.
#include <gtest/gtest.h>
#include <unistd.h>

#include "copy_group.h"
#include "support/errors.h"
#include "support/ranks/message_ranks.h"

namespace mcast::test {
namespace {

// The parameter is the value of `shared_memory`.
class EngineMessages : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Paths, EngineMessages, testing::Values("off", "slots", "auto"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(EngineMessages, DeliverExactBytes) {
  for (const size_t length : {0u, 5u, 70'001u, 3'000'001u}) {
    expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      auto group = make_group("g", rank, 3, store, {{"shared_memory", GetParam()}});
      if (!group || !group->carries_messages()) return false;
      for (size_t round = 0; round < 4; round++) {
        if (!talk(*group, length, round)) return false;
        if (round % 2 == 0 && !work(*group, 1000, 1)) return false;
      }
      return barrier(*group).ok() && group->close(5 * kSecond).ok();
    }));
  }
}

TEST_P(EngineMessages, EndWithTheGroup) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, 2, store, {{"shared_memory", GetParam()}});
    if (!group) return false;
    // Otherwise the other rank's creation may end with it.
    if (!store.set("made." + std::to_string(rank), "").ok()) return false;
    if (!store.multi_get({"made.0", "made.1"}, 30 * kSecond).ok()) return false;
    const auto m = post_one(*group, true, static_cast<Member>(1 - rank), 1, 10, 0);
    if (rank == 0) group->abort("enough");
    const Status s = m->end.get();
    EXPECT_TRUE(is_error(s, ErrorId::aborted, {{"rank", "0"}, {"reason", "enough"}}));
    const Status later = post_one(*group, true, static_cast<Member>(1 - rank), 1, 10, 0)->end.get();
    EXPECT_NE(later.message().find("failed earlier"), std::string::npos) << later.to_string();
    return !testing::Test::HasFailure();
  }));
}

TEST_P(EngineMessages, CloseWithOneInFlightNamesIt) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, 2, store, {{"shared_memory", GetParam()}});
    if (!group) return false;
    if (rank == 1) return group->close(5 * kSecond).ok() || true;
    const auto m = post_one(*group, true, 1, 4, 10, 0);
    const Status closed = group->close(100 * kMilli);
    const Status s = m->end.get();
    EXPECT_FALSE(s.ok());
    EXPECT_NE(s.message().find("recv of 10 bytes with tag 4 from rank 1"), std::string::npos)
        << s.message();
    return !testing::Test::HasFailure();
  }));
}

// The other process ends while a receive, or a send whose memory is lent, waits for it. (Over a
// network: collective/messages_test.)
class HostEngineMessages : public EngineMessages {};
INSTANTIATE_TEST_SUITE_P(Paths, HostEngineMessages, testing::Values("slots", "auto"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(HostEngineMessages, EndWithTheProcessThatTheyWaitFor) {
  for (const bool sends : {false, true}) {
    const auto ended = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      auto group = make_group("g", rank, 3, store, {{"shared_memory", GetParam()}});
      if (!group || !barrier(*group).ok()) return false;
      if (rank == 2) ::_exit(0);
      const auto m = post_one(*group, !sends, 2, 1, 1'000'000, 0);
      const Status s = m->end.get();
      EXPECT_TRUE(is_error(s, ErrorId::rank_ended, {{"rank", "2"}}));
      return !testing::Test::HasFailure();
    });
    expect_all_good(ended);
  }
}

TEST(EngineMessagesRefused, WhereTheyCannotBe) {
  CopyGroup group("g", 1, 3);
  EXPECT_FALSE(group.carries_messages());
  for (const Member peer : {Member{1}, Member{3}, kNoMember}) {
    const Status s = post_one(group, false, peer, 0, 10, 0)->end.get();
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find("is not another rank of group 'g'"), std::string::npos)
        << s.message();
  }
  EXPECT_EQ(post_one(group, false, 0, 0, 10, 0)->end.get().code(), Code::kUnavailable);
  EXPECT_EQ(post_one(group, true, kNoMember, 0, 10, 0)->end.get().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace mcast::test
