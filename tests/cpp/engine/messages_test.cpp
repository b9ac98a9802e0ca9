// Messages through groups of the engine, over sockets on loopback; and what is refused before
// anything is sent.
#include <gtest/gtest.h>

#include <future>

#include "copy_group.h"
#include "programs.h"

namespace mcast::test {
namespace {

struct EngineMessage {
  std::vector<std::byte> bytes;
  std::shared_ptr<std::atomic<Member>> source = std::make_shared<std::atomic<Member>>(kNoMember);
  std::promise<Status> ended;
  std::future<Status> end = ended.get_future();
};

std::shared_ptr<EngineMessage> post_one(Group& group, bool receives, Member peer, uint32_t tag,
                                        size_t length, size_t seed) {
  auto m = std::make_shared<EngineMessage>();
  m->bytes.resize(length);
  if (!receives) fill(m->bytes, 0, length, seed);
  MessageCall call;
  call.receives = receives;
  call.memory = {std::make_shared<Region>(m->bytes.data(), length, m), 0, length};
  call.peer = peer;
  call.tag = tag;
  call.source = m->source;
  PostOptions options;
  options.timeout = 30 * kSecond;
  options.done = [m](const Status& status) { m->ended.set_value(status); };
  const Status posted = group.post_message(std::move(call), std::move(options));
  if (!posted.ok()) m->ended.set_value(posted);
  return m;
}

// Each to each, at once, in an order of its own; the last by any source. Rounds have tags of their
// own: one that is ahead has sent its next message already, which any source would take, too.
bool talk(Group& group, size_t length, size_t round) {
  const Member self = group.rank(), size = group.size();
  const auto tag = static_cast<uint32_t>(round);
  std::vector<std::shared_ptr<EngineMessage>> out, in;
  for (Member r = 0; r < size; r++) {
    if (r != self) out.push_back(post_one(group, false, r, tag, length, round * 100 + self));
  }
  for (Member r = size; r-- > 0;) {
    const bool any = r == 0 || (r == 1 && self == 0);
    if (r != self) in.push_back(post_one(group, true, any ? kNoMember : r, tag, length, 0));
  }
  for (const auto& m : out) {
    if (const Status s = m->end.get(); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
  }
  for (const auto& m : in) {
    if (const Status s = m->end.get(); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
    const Member from = m->source->load();
    if (!holds(m->bytes, 0, length, round * 100 + from)) {
      return ADD_FAILURE() << "from rank " << from << " on rank " << self, false;
    }
  }
  return true;
}

TEST(EngineMessages, DeliverExactBytes) {
  for (const size_t length : {0u, 5u, 70'001u, 3'000'001u}) {
    expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      auto group = make_group("g", rank, 3, store, {{"shared_memory", "off"}});
      if (!group || !group->carries_messages()) return false;
      for (size_t round = 0; round < 4; round++) {
        if (!talk(*group, length, round)) return false;
        if (round % 2 == 0 && !work(*group, 1000, 1)) return false;
      }
      return barrier(*group).ok() && group->close(5 * kSecond).ok();
    }));
  }
}

TEST(EngineMessages, EndWithTheGroup) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, 2, store, {{"shared_memory", "off"}});
    if (!group) return false;
    const auto m = post_one(*group, true, static_cast<Member>(1 - rank), 1, 10, 0);
    if (rank == 0) group->abort("enough");
    const Status s = m->end.get();
    EXPECT_NE(s.message().find("enough"), std::string::npos) << s.to_string();
    const Status later = post_one(*group, true, static_cast<Member>(1 - rank), 1, 10, 0)->end.get();
    EXPECT_NE(later.message().find("failed earlier"), std::string::npos) << later.to_string();
    return !testing::Test::HasFailure();
  }));
}

TEST(EngineMessages, WhoClosesWithOneInFlightSaysSo) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, 2, store, {{"shared_memory", "off"}});
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

TEST(EngineMessages, AreRefusedWhereTheyCannotBe) {
  CopyGroup group("g", 1, 3);
  EXPECT_FALSE(group.carries_messages());
  for (const Member peer : {Member{1}, Member{3}, kNoMember}) {
    const Status s = post_one(group, false, peer, 0, 10, 0)->end.get();
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find("is no other rank of group 'g'"), std::string::npos) << s.message();
  }
  EXPECT_EQ(post_one(group, false, 0, 0, 10, 0)->end.get().code(), Code::kUnavailable);
  EXPECT_EQ(post_one(group, true, kNoMember, 0, 10, 0)->end.get().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace mcast::test
