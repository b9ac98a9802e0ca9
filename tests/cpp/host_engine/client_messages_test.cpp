// Messages of groups that a host engine runs, over the network: beside ranks without an engine, at
// the limits of an engine, and when an engine, a rank or its memory goes away.
// (client_group_test.cpp runs the suite of messages through an engine.)
#include "host_engine/client/client_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>

#include "base/clock.h"
#include "engine_process.h"
#include "host_engine/server/drain_socket.h"
#include "support/errors.h"
#include "support/ranks/message_ranks.h"

namespace mcast::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

std::shared_ptr<Group> member_of(const EngineProcess* engine, Member rank, uint32_t ranks,
                                 KeyValueStore& store, const std::string& memory = "slots") {
  const std::string where = engine == nullptr ? "inproc" : engine->setting();
  return make_group("hosted", rank, ranks, store, {{"engine", where}, {"engine_memory", memory}});
}

bool all_at(DirectoryStore& store, const std::string& where, Member rank, uint32_t ranks) {
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < ranks; r++) keys.push_back(where + "." + std::to_string(r));
  return store.set(keys[rank], "").ok() && store.multi_get(keys, 30 * kSecond).ok();
}

TEST(ClientMessages, PassBetweenRanksOfTwoEnginesAndOfNone) {
  for (const char* memory : {"slots", "map", "copy", "auto"}) {
    EngineProcess first, second;
    const EngineProcess* const engines[] = {&first, nullptr, &second};
    expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      auto group = member_of(engines[rank], rank, 3, store, memory);
      if (!group || !group->carries_messages()) return false;
      size_t round = 0;
      for (const size_t length : {0u, 7u, 33'000u, 200'001u, 5'000'001u}) {
        if (!talk(*group, length, round++)) return false;
      }
      if (!work(*group, 1000, 1) || !all_at(store, "worked", rank, 3)) return false;
      EXPECT_EQ(counter(*group, "messages_sent"), 2 * round) << "counted in the engine";
      EXPECT_EQ(counter(*group, "messages_received"), 2 * round);
      return all_at(store, "counted", rank, 3) && group->close(5 * kSecond).ok();
    }));
  }
}

// Short sends are over at once: the engine's reports about them are read although no thread waits.
TEST(ClientMessages, ManyMayBePostedBeforeOneIsWaitedFor) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = member_of(&engine, rank, 2, store);
    if (!group) return false;
    constexpr size_t kMany = 6000;
    std::vector<std::shared_ptr<EngineMessage>> sent;
    for (size_t i = 0; rank == 0 && i < kMany; i++) {
      sent.push_back(post_one(*group, false, 1, i % 3, 20, i));
    }
    for (const auto& m : sent) {
      if (const Status s = m->end.get(); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
    }
    if (!all_at(store, "sent", rank, 2)) return false;
    for (size_t i = 0; rank == 1 && i < kMany; i++) {
      const auto m = post_one(*group, true, kNoMember, i % 3, 20, 0);
      if (const Status s = m->end.get(); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
      if (!holds(m->bytes, 0, 20, i)) return ADD_FAILURE() << "message " << i, false;
    }
    return all_at(store, "received", rank, 2) && group->close(5 * kSecond).ok();
  }));
}

TEST(ClientMessages, WrongLengthOrMissingMessageIsNamedOnBothRanks) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto length = store.scoped("length"), limit = store.scoped("limit");
    auto one = member_of(&engine, rank, 2, length), two = member_of(&engine, rank, 2, limit);
    if (!one || !two || !all_at(store, "made", rank, 2)) return false;
    const Member other = 1 - rank;
    const auto sent = rank == 0 ? post_one(*one, false, 1, 3, 100, 1) : nullptr;
    const Status differs = post_one(*one, true, other, 3, 101, 0)->end.get();
    EXPECT_EQ(differs.code(), Code::kMismatch) << differs.to_string();
    EXPECT_THAT(differs.message(), HasSubstr("rank 0 has sent 100 bytes to recv of 101 bytes with "
                                             "tag 3 from rank 0 (group 'hosted', rank 1)"));
    const Status late =
        post_one(*two, true, other, 9, 50, 0, rank == 0 ? kSecond : 30 * kSecond)->end.get();
    EXPECT_EQ(late.code(), Code::kTimeout) << late.to_string();
    EXPECT_THAT(late.message(),
                HasSubstr("recv of 50 bytes with tag 9 from rank 1 (group 'hosted', rank 0) "
                          "did not finish within 1.0 s: no such message has arrived"));
    EXPECT_THAT(post_one(*two, false, other, 9, 50, 0)->end.get().message(),
                HasSubstr("failed earlier"));
    return all_at(store, "named", rank, 2);
  }));
}

TEST(ClientMessages, AKilledEngineIsNamedByAllThatIsInFlight) {
  for (const char* memory : {"slots", "copy"}) {
    EngineProcess engine;
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      auto group = member_of(&engine, rank, 2, store, memory);
      if (!group || !work(*group, 1000, 1) || !all_at(store, "worked", rank, 2)) return false;
      const auto in = post_one(*group, true, 1 - rank, 1, 4096, 0);
      const auto any = post_one(*group, true, kNoMember, 2, 4096, 0);
      const auto out = post_one(*group, false, 1 - rank, 3, 4 << 20, 1);
      if (!all_at(store, "posted", rank, 2)) return false;
      if (rank == 0) engine.signal(SIGKILL);
      for (const auto& m : {in, any, out}) {
        const Status s = m->end.get();
        EXPECT_EQ(s.code(), Code::kPeerLost) << s.to_string();
        EXPECT_THAT(s.message(), HasSubstr("engine of this host (process "));
        EXPECT_THAT(s.message(), HasSubstr("(group 'hosted', rank " + std::to_string(rank) + ")"));
      }
      EXPECT_THAT(post_one(*group, false, 1 - rank, 3, 10, 1)->end.get().message(),
                  HasSubstr("failed earlier"));
      return true;
    }));
    EXPECT_EQ(engine.end(SIGTERM), -SIGKILL);
  }
}

TEST(ClientMessages, KilledRankIsNamedByTheWaitingRank) {
  EngineProcess engine;
  const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    auto group = member_of(&engine, rank, 3, store);
    if (!group || !work(*group, 1000, 1) || !all_at(store, "worked", rank, 3)) return false;
    if (rank == 1) raise(SIGKILL);
    const auto m = post_one(*group, true, rank == 0 ? Member{1} : kNoMember, 1, 100, 0);
    const Status s = m->end.get();
    EXPECT_THAT(s.message(), HasSubstr("rank 1 is lost"));
    EXPECT_THAT(s.message(), HasSubstr("has ended"));
    return true;
  });
  EXPECT_EQ(ends[0].exit_code, 0);
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_EQ(ends[2].exit_code, 0);
}

// A stopped process's posts are sent and received meanwhile.
TEST(ClientMessages, AStoppedRankIsServed) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = member_of(&engine, rank, 2, store);
    if (!group || !work(*group, 1000, 1) || !all_at(store, "worked", rank, 2)) return false;
    constexpr size_t kLength = 4 << 20;
    if (rank == 1) {
      const auto out = post_one(*group, false, 0, 1, kLength, 7);
      const auto in = post_one(*group, true, 0, 1, kLength, 0);
      if (!store.set("posted", std::to_string(getpid())).ok()) return false;
      EXPECT_TRUE(out->end.get().ok());
      EXPECT_TRUE(in->end.get().ok());
      EXPECT_TRUE(holds(in->bytes, 0, kLength, 8));
    } else {
      const auto posted = store.multi_get({"posted"}, 30 * kSecond);
      if (!posted.ok()) return false;
      const pid_t other = std::stoi((*posted)[0]);
      kill(other, SIGSTOP);
      const auto in = post_one(*group, true, 1, 1, kLength, 0);
      const auto out = post_one(*group, false, 1, 1, kLength, 8);
      const Status received = in->end.get(), sent = out->end.get();
      kill(other, SIGCONT);
      EXPECT_TRUE(received.ok() && sent.ok()) << received.to_string() << sent.to_string();
      EXPECT_TRUE(holds(in->bytes, 0, kLength, 7));
    }
    return all_at(store, "over", rank, 2) && group->close(5 * kSecond).ok();
  }));
}

// Rank 0 is on this engine, which drains with a message in flight; rank 1 is on another one.
TEST(ClientMessages, TheLimitOfADrainIsNamedOnAllRanks) {
  EngineProcess first, second;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = member_of(rank == 0 ? &first : &second, rank, 2, store);
    if (!group || !work(*group, 1000, 1) || !all_at(store, "worked", rank, 2)) return false;
    const auto waits = post_one(*group, true, 1 - rank, 1, 100, 0);
    if (!all_at(store, "posted", rank, 2)) return false;
    if (rank == 0) {
      EXPECT_TRUE(service::ask_to_drain(first.path(), kSecond).ok());
    }
    const Status s = waits->end.get();
    EXPECT_THAT(s.message(), HasSubstr("is being replaced"));
    EXPECT_THAT(s.message(), HasSubstr("its clients had 1.0 s to leave"));
    if (rank == 1) {
      EXPECT_THAT(s.message(), HasSubstr("rank 0 is lost: the engine of its host"));
    }
    return true;
  }));
  EXPECT_EQ(first.end(0), 0);
}

TEST(ClientMessages, AMessageTooManyIsNamedOnBothRanks) {
  service::TenantLimits limits;
  limits.operations = 3;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = member_of(&engine, rank, 2, store);
    if (!group || !all_at(store, "made", rank, 2)) return false;
    std::vector<std::shared_ptr<EngineMessage>> waiting;
    for (uint32_t i = 0; i < (rank == 0 ? 4u : 1u); i++) {
      waiting.push_back(post_one(*group, true, 1 - rank, i, 10, 0));
    }
    for (const auto& m : waiting) {
      const Status s = m->end.get();
      EXPECT_THAT(s.message(), HasSubstr("3 operations in flight (--operations)"));
    }
    return all_at(store, "named", rank, 2);
  }));
}

TEST(ClientMessages, MemoryThatWentAwayIsNamedOnBothRanks) {
  for (const bool sends : {true, false}) {
    EngineProcess engine;
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      auto group = member_of(&engine, rank, 2, store, "copy");
      if (!group || !work(*group, 1000, 1) || !all_at(store, "worked", rank, 2)) return false;
      constexpr size_t kLength = 1 << 20;
      auto* const memory = static_cast<std::byte*>(
          mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (rank == 0) munmap(memory + kLength / 2, 4096);
      std::promise<Status> ended;
      MessageCall call;
      call.receives = (rank == 0) != sends;
      call.peer = 1 - rank;
      call.memory = {std::make_shared<Region>(memory, kLength, nullptr), 0, kLength};
      PostOptions options;
      options.done = [&](const Status& s) { ended.set_value(s); };
      EXPECT_TRUE(group->post_message(std::move(call), std::move(options)).ok());
      Status s = ended.get_future().get();
      // The send to memory that is gone succeeds all the same.
      if (rank == 1 && s.ok()) s = post_one(*group, true, 0, 9, 10, 0)->end.get();
      EXPECT_THAT(s.message(), HasSubstr(sends ? "rank 0: memory of send went away"
                                               : "rank 0: memory of recv went away"));
      return all_at(store, "named", rank, 2);
    }));
  }
}

TEST(ClientMessages, TheLimitOfCopiesIsNamedOnBothRanks) {
  service::TenantLimits limits;
  limits.bounce = uint64_t{2} << 20;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = member_of(&engine, rank, 2, store, "copy");
    if (!group) return false;
    for (size_t round = 0; round < 20; round++) {  // freed memory can be used again
      if (!talk(*group, 300'000, round)) return false;
    }
    if (!all_at(store, "talked", rank, 2)) return false;
    const auto m = post_one(*group, rank == 1, 1 - rank, 99, size_t{4} << 20, 0);
    EXPECT_THAT(m->end.get().message(), HasSubstr("engine's limit of 2M for copies of user"));
    return all_at(store, "named", rank, 2);
  }));
}

// Records an engine's reports about a group whose records are written by hand.
class MessageListener final : public ClientListener {
 public:
  void on_completed(ipc::Completed record) override {
    const std::lock_guard<std::mutex> held(mutex_);
    if (const auto* done = std::get_if<ipc::MessageDoneRecord>(&record)) done_.push_back(*done);
    news_.notify_all();
  }
  void on_lost(const Status& why) override {
    const std::lock_guard<std::mutex> held(mutex_);
    lost_ = why;
    news_.notify_all();
  }
  // Waits for the ends of `count` messages; returns fewer if the link was lost before.
  std::vector<ipc::MessageDoneRecord> wait(size_t count) {
    std::unique_lock<std::mutex> held(mutex_);
    news_.wait_for(held, std::chrono::seconds(20),
                   [&] { return done_.size() >= count || !lost_.ok(); });
    return done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<ipc::MessageDoneRecord> done_;
  Status lost_;
};

// Rank 0 writes these records by hand. Rank 1 is a correct client that waits for a message. Two
// ranks of another job work at the same time. `arena`: the space of 4 KiB that the records may
// name.
struct WrongMessages {
  std::function<std::vector<ipc::MessageRecord>(const ipc::MessageRecord& good)> records;
  size_t ended = 0;         // how many of its messages the engine ends
  const char* own = "";     // text of the last of these ends
  const char* text = "";    // error text at rank 1
  std::string reason = "";  // of the abort by rank 0 that rank 1 is notified of, if any
};

std::string no_other_rank(Member peer) {
  return "rank " + std::to_string(peer) + " is not another rank of group 'hosted' (size 2)";
}

void expect_messages_refused(const WrongMessages& wrong) {
  EngineProcess engine;
  expect_all_good(run_ranks(4, 60, [&](Member rank, DirectoryStore& store) {
    if (rank >= 2) {
      auto beside = store.scoped("beside");
      auto group = member_of(&engine, rank - 2, 2, beside);
      if (!group) return false;
      for (size_t round = 0; round < 20; round++) {
        if (!talk(*group, 50'000, round) || !work(*group, 1000, 1)) return false;
      }
      return group->close(5 * kSecond).ok();
    }
    if (rank == 1) {
      auto group = member_of(&engine, 1, 2, store);
      if (!group || !store.set("made", "").ok()) return false;
      const Status s = post_one(*group, true, 0, 77, 10, 0)->end.get();
      EXPECT_FALSE(s.ok());
      EXPECT_THAT(s.message(), HasSubstr(wrong.text));
      if (!wrong.reason.empty()) {
        EXPECT_TRUE(is_error(s, ErrorId::aborted, {{"rank", "0"}, {"reason", wrong.reason}}));
      }
      return store.set("named", "").ok();
    }
    auto spec = group_spec("hosted", 0, 2, {{"engine", engine.setting()}});
    auto link = ClientLink::connect(engine.path(), 5 * kSecond);
    if (!link.ok()) return false;
    const auto made = (*link)->make_group(*spec, store);
    const auto span = (*link)->arenas().take(4096);
    if (!made.ok() || !*made || !span.ok() || !(*made)->messages) return false;
    const auto listener = std::make_shared<MessageListener>();
    (*link)->listen((*made)->handle, listener);
    if (!store.multi_get({"made"}, 20 * kSecond).ok()) return false;
    ipc::MessageRecord good;
    good.group = (*made)->handle;
    good.peer = 1;
    good.timeout = 20 * kSecond;
    good.memory = {
        static_cast<ipc::Space>((*span)->space), ipc::Role::kInput, 1, (*span)->offset, 4096, 0};
    for (const ipc::MessageRecord& record : wrong.records(good)) {
      if (!(*link)->submit(record).ok()) break;
    }
    const auto ends = listener->wait(wrong.ended == 0 ? SIZE_MAX : wrong.ended);
    if (wrong.ended > 0) {  // otherwise some may have ended with the client
      EXPECT_EQ(ends.size(), wrong.ended);
      EXPECT_THAT(ends.back().text, HasSubstr(wrong.own));
    }
    EXPECT_EQ((*link)->lost().ok(), wrong.ended > 0) << "no sound client's: it is ended";
    return store.multi_get({"named"}, 20 * kSecond).ok();
  }));
}

TEST(ClientMessages, AnArenaHasAnEnd) {
  expect_messages_refused({[](const ipc::MessageRecord& good) {
                             auto beside = good;
                             beside.memory.base = ClientArenas::kLeast - 4095;
                             return std::vector{beside};
                           },
                           0, "", "a slice is outside its arena"});
}

TEST(ClientMessages, MemoryIsOfferedBeforeItIsNamed) {
  expect_messages_refused({[](const ipc::MessageRecord& good) {
                             auto own = good;
                             own.memory.space = ipc::Space::kOwn;
                             return std::vector{own};
                           },
                           0, "", "a slice of memory that was not offered"});
}

TEST(ClientMessages, ANumberIsOfOneMessageInFlight) {
  expect_messages_refused({[](const ipc::MessageRecord& good) {
                             auto twice = good;
                             twice.receives = true;
                             twice.memory.role = ipc::Role::kOutput;
                             return std::vector{twice, twice};
                           },
                           0, "", "message 0 is in flight already"});
}

TEST(ClientMessages, APeerIsAnotherRank) {
  for (const Member peer : {Member{0}, Member{2}, kNoMember}) {
    expect_messages_refused({[peer](const ipc::MessageRecord& good) {
                               auto nobody = good;
                               nobody.peer = peer;
                               return std::vector{nobody};
                             },
                             1, "is not another rank of group 'hosted' (size 2)", "",
                             "send: " + no_other_rank(peer)});
  }
}

// Two receives into the same bytes concern only the client itself. The last record names an unknown
// group.
TEST(ClientMessages, TheSameMemoryTwiceHarmsNobodyElse) {
  expect_messages_refused({[](const ipc::MessageRecord& good) {
                             std::vector<ipc::MessageRecord> all;
                             for (uint32_t i = 0; i < 4; i++) {
                               auto one = good;
                               one.number = i;
                               one.receives = i % 2 == 0;
                               if (one.receives) one.memory.role = ipc::Role::kOutput;
                               all.push_back(one);
                             }
                             all[3].peer = 0;  // peer 0 is this rank, which ends the group
                             auto gone = good;
                             gone.group += 7;
                             all.push_back(gone);
                             return all;
                           },
                           4, "", "", "send: " + no_other_rank(0)});
}

}  // namespace
}  // namespace mcast::test
