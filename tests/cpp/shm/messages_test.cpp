// send and receive among ranks of one host, under every schedule that a seed makes: whole bytes, in
// order, no lost wake-up (a standstill ends the test), and one end for each of them.
#include "shm/messages.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>

#include "shm/host_world.h"
#include "shm/message_runs.h"
#include "support/errors.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr PeerMemory kMemories[] = {PeerMemory::kSlots, PeerMemory::kRead, PeerMemory::kMapped};
constexpr Member kAnyRank = kNoMember;

TEST(HostMessages, CrossOnce) {
  for (const PeerMemory memory : kMemories) {
    for (const size_t bytes : {0u, 1u, 32'768u, 32'769u, 98'303u, 98'304u, 3'000'000u}) {
      for (const bool early : {false, true}) {
        HostWorld world(3, memory, bytes + early);
        std::shared_ptr<MessageRun> r;
        if (!early) r = receive(world, 1, 2, 7, bytes);
        const auto s = send(world, 2, 1, 7, bytes, 5);
        if (early) {
          ASSERT_TRUE(world.run());
          r = receive(world, 1, 2, 7, bytes);
        }
        ASSERT_TRUE(world.run());
        expect_got(*r, 2, 5);
        EXPECT_TRUE(s->ends == 1 && s->status.ok()) << s->status.to_string();
        EXPECT_EQ(world.total(Counter::messages_sent), 1u);
        EXPECT_EQ(world.total(Counter::messages_received), 1u);
        EXPECT_EQ(world.total(Counter::message_bytes_sent), bytes);
        EXPECT_EQ(world.total(Counter::message_bytes_received), bytes);
        const uint64_t lent =
            world.total(Counter::shm_direct_bytes) + world.total(Counter::shm_mapped_bytes);
        EXPECT_EQ(lent, memory != PeerMemory::kSlots && bytes >= 98'304 ? bytes : 0);
        // Reported after each copy of 512 KiB if memory is lent, otherwise after pieces of 32 KiB.
        const size_t longest = 3'000'000;
        EXPECT_EQ(r->there / 100'000, bytes < longest ? 0 : lent > 0 ? 26 : 29);
        for (const Member m : {0, 1, 2}) EXPECT_TRUE(world.core(m).idle());
      }
    }
  }
}

TEST(HostMessages, AnySourceTakesTheFirstArrival) {
  HostWorld world(4, PeerMemory::kRead, 1);
  MessageRuns runs;
  for (int i = 0; i < 3; i++) runs.push_back(receive(world, 0, kAnyRank, 5, 200'000));
  for (const Member from : {2, 3, 1}) {
    send(world, from, 0, 5, 200'000, from);
    ASSERT_TRUE(world.run());
  }
  expect_got(*runs[0], 2, 2);
  expect_got(*runs[1], 3, 3);
  expect_got(*runs[2], 1, 1);
}

// Each rank sends to the next and receives from the one before, and no receive is posted when the
// messages leave. Data that does not fit into a ring waits, and nothing else waits for it.
TEST(HostMessages, RingsDoNotWaitForThemselves) {
  for (const PeerMemory memory : kMemories) {
    for (const size_t bytes : {100u, 30'000u, 2'000'000u}) {
      const int each = bytes < 100'000 ? 20 : 2;
      HostWorld world(4, memory, bytes);
      MessageRuns runs;
      for (int i = 0; i < each; i++) {
        for (Member r = 0; r < 4; r++) send(world, r, (r + 1) % 4, 0, bytes, 100 * i + r);
      }
      ASSERT_TRUE(world.run());
      for (int i = 0; i < each; i++) {
        for (Member r = 0; r < 4; r++) {
          runs.push_back(receive(world, r, (r + 3) % 4, 0, bytes));
          runs.back()->id = 100 * i + (r + 3) % 4;
        }
      }
      ASSERT_TRUE(world.run());
      for (const auto& run : runs) expect_got(*run, run->peer, run->id);
    }
  }
}

// A rank without receives still makes room for senders, far beyond the size of its ring.
TEST(HostMessages, RankWithoutReceivesKeepsShortMessages) {
  HostWorld world(2, PeerMemory::kSlots, 3);
  MessageRuns runs;
  for (uint64_t id = 0; id < 10'000; id++) runs.push_back(send(world, 0, 1, 1, 10, id));
  ASSERT_TRUE(world.run(20'000'000));
  for (const auto& run : runs) ASSERT_EQ(run->ends, 1);
  EXPECT_EQ(world.total(Counter::messages_received), 0u);
  EXPECT_GT(world.total(Counter::messages_kept), 5'000u);
  for (uint64_t id = 0; id < 10'000; id++) {
    const auto r = receive(world, 1, 0, 1, 10);
    ASSERT_TRUE(world.run());
    expect_got(*r, 0, id);
  }
}

TEST(HostMessages, AreSentAheadOnlyAsFarAsTheAllowance) {
  HostWorld world(2, PeerMemory::kSlots, 3);
  MessageRuns receives;
  for (uint64_t id = 0; id < 300; id++) send(world, 0, 1, 1, 20'000, id);
  ASSERT_TRUE(world.run());
  EXPECT_LE(world.total(Counter::message_bytes_sent), 128u << 10);
  for (uint64_t id = 0; id < 300; id++) receives.push_back(receive(world, 1, 0, 1, 20'000));
  ASSERT_TRUE(world.run());
  for (uint64_t id = 0; id < 300; id++) expect_got(*receives[id], 0, id);
}

// A sender may have at most 65,536 heads for which no receive was posted. The first receive
// allows the next ones.
TEST(HostMessages, HeadsBeyondTheLimitWait) {
  constexpr uint64_t kHeads = 1u << 16;
  HostWorld world(2, PeerMemory::kSlots, 3);
  MessageRuns sends;
  for (uint64_t id = 0; id < kHeads + 10; id++) {
    sends.push_back(send(world, 0, 1, 1, id == 0 ? 5 : 0, id));
    if (id % 1000 != 0) continue;
    ASSERT_TRUE(world.run());
  }
  ASSERT_TRUE(world.run(20'000'000));
  EXPECT_EQ(world.total(Counter::messages_sent), kHeads);
  receive(world, 1, 0, 1, 5);
  for (uint64_t id = 1; id < kHeads + 10; id++) receive(world, 1, 0, 1, 0);
  ASSERT_TRUE(world.run(20'000'000));
  EXPECT_EQ(world.total(Counter::messages_received), kHeads + 10);
}

struct Program {
  // Lengths in the order of the sends, by sender, receiver and tag.
  std::map<std::array<Member, 3>, std::vector<size_t>> lines;
};

Program make_program(uint64_t seed, uint32_t ranks, int messages) {
  static constexpr size_t kSizes[] = {0, 1, 100, 5000, 32'768, 32'769, 98'304, 400'000, 1'200'001};
  Rng rng(seed * 31 + 7);
  Program program;
  for (int i = 0; i < messages; i++) {
    const auto a = static_cast<Member>(rng.below(ranks));
    const auto b = static_cast<Member>((a + 1 + rng.below(ranks - 1)) % ranks);
    program.lines[{a, b, static_cast<Member>(rng.below(3))}].push_back(
        kSizes[rng.below(rng.chance(0.6) ? 5 : std::size(kSizes))]);
  }
  return program;
}

uint64_t id_of(const std::array<Member, 3>& line, size_t k) {
  return 1 + line[0] + 10ull * line[1] + 100ull * line[2] + 1000 * k;
}

// Posts all of them in a random order, among operations, with steps in between.
struct Play {
  HostWorld& world;
  Program program;
  MessageRuns sends, receives;
  std::vector<uint64_t> expected;  // by receive

  void run(Rng& rng, uint64_t seed, bool operations) {
    std::map<std::array<Member, 3>, size_t> sent, received;
    uint32_t calls = 0;
    for (bool more = true; more;) {
      more = false;
      for (const auto& [line, lengths] : program.lines) {
        size_t& out = sent[line];
        size_t& in = received[line];
        if (out < lengths.size() && rng.chance(0.4)) {
          sends.push_back(send(world, line[0], line[1], line[2], lengths[out], id_of(line, out)));
          out++;
        }
        if (in < lengths.size() && rng.chance(0.4)) {
          receives.push_back(receive(world, line[1], line[0], line[2], lengths[in]));
          expected.push_back(id_of(line, in++));
        }
        more = more || out < lengths.size() || in < lengths.size();
        for (uint64_t i = rng.below(20); i > 0; i--) world.step();
      }
      if (!operations || !rng.chance(0.3)) continue;
      for (uint32_t r = 0; r < world.size(); r++) {
        const auto m = static_cast<Member>(r);
        world.post(m, make_call(seed, calls, m, world.size()));
      }
      calls++;
    }
  }
};

TEST(HostMessages, RandomOnesAllArriveWhateverTheSchedule) {
  for (const uint64_t seed : seeds(150)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    const auto ranks = static_cast<uint32_t>(2 + rng.below(4));
    HostWorld world(ranks, memory_by(seed), seed);
    Play play{world, make_program(seed, ranks, 50), {}, {}, {}};
    play.run(rng, seed, seed % 2 == 0);
    ASSERT_TRUE(world.run()) << "does not end";
    for (const auto& run : play.sends) {
      ASSERT_EQ(run->ends, 1) << "a wake-up is lost";
      ASSERT_TRUE(run->status.ok()) << run->status.to_string();
    }
    for (size_t i = 0; i < play.receives.size(); i++) {
      expect_got(*play.receives[i], play.receives[i]->peer, play.expected[i]);
      if (testing::Test::HasFailure()) return;
    }
    for (uint32_t r = 0; r < ranks; r++) {
      const auto m = static_cast<Member>(r);
      EXPECT_TRUE(world.core(m).idle());
      const auto& calls = world.calls(m);
      for (uint32_t i = 0; i < calls.size(); i++) {
        ASSERT_EQ(calls[i]->ended, 1);
        ASSERT_TRUE(calls[i]->result == expected_outputs(seed, i, ranks)[r]);
      }
    }
  }
}

// A rank fails or ends in the middle: each message ends once, either complete or with the reason.
void disturb_messages(uint64_t seed, const std::function<void(HostWorld&, Member)>& event,
                      ErrorId id) {
  Rng rng(seed);
  const auto ranks = static_cast<uint32_t>(2 + rng.below(3));
  const auto culprit = static_cast<Member>(rng.below(ranks));
  HostWorld world(ranks, memory_by(seed), seed);
  Play play{world, make_program(seed, ranks, 30), {}, {}, {}};
  play.run(rng, seed, false);
  const auto never = receive(world, culprit == 0 ? 1 : 0, culprit, 9, 10);
  event(world, culprit);
  for (int round = 0; round < 4; round++) {
    ASSERT_TRUE(world.run());
    world.watch();
    world.now += kSecond;
  }
  ASSERT_TRUE(world.run());
  ASSERT_EQ(never->ends, 1);
  const Fields who{{"rank", std::to_string(culprit)}};
  EXPECT_TRUE(is_error(never->status, id, who));
  play.sends.insert(play.sends.end(), play.receives.begin(), play.receives.end());
  for (const auto& run : play.sends) {
    if (run->rank == culprit) continue;
    ASSERT_EQ(run->ends, 1);
    if (!run->status.ok()) {
      EXPECT_TRUE(is_error(run->status, id, who));
    }
  }
  for (size_t i = 0; i < play.receives.size(); i++) {
    const auto& run = play.receives[i];
    if (run->ends == 1 && run->status.ok()) expect_got(*run, run->peer, play.expected[i]);
  }
}

TEST(HostMessages, AKilledRankEndsThem) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    disturb_messages(
        seed, [](HostWorld& world, Member m) { world.kill(m); }, ErrorId::rank_lost);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(HostMessages, AnAbortEndsThemOnAllRanks) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    disturb_messages(
        seed,
        [](HostWorld& world, Member m) {
          world.core(m).fail(make_error<ErrorId::aborted>(m, "enough"), m);
          world.core(m).deliver();
        },
        ErrorId::aborted);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(HostMessages, WrongLengthFailsOnAllRanks) {
  for (const PeerMemory memory : kMemories) {
    for (const size_t bytes : {100u, 300'000u}) {
      HostWorld world(3, memory, 1);
      const auto waits = receive(world, 1, 0, 0, 1);
      const auto s = send(world, 2, 0, 4, bytes, 1);
      const auto r = receive(world, 0, 2, 4, bytes + 1);
      ASSERT_TRUE(world.run());
      for (const auto& run : {r, waits}) {
        ASSERT_EQ(run->ends, 1);
        EXPECT_EQ(run->status.code(), Code::kMismatch);
        EXPECT_TRUE(says(*run, "rank 2 has sent " + std::to_string(bytes) + " bytes to recv of " +
                                   std::to_string(bytes + 1) +
                                   " bytes with tag 4 from rank 2 (group 'g', rank 0)"))
            << run->status.message();
      }
      EXPECT_EQ(s->ends, 1);
      EXPECT_EQ(world.total(Counter::mismatched), 1u);
      const auto later = receive(world, 2, 0, 0, 1);
      EXPECT_EQ(later->status.code(), Code::kMismatch);
    }
  }
}

TEST(HostMessages, LateOnesEndByTheirLimits) {
  for (const bool sends : {false, true}) {
    HostWorld world(3, PeerMemory::kRead, 1);
    const auto late = sends ? send(world, 1, 2, 4, 200'000, 1, 3 * kSecond)
                            : receive(world, 1, 2, 4, 10, 3 * kSecond);
    const auto other = receive(world, 0, 2, 1, 10);
    ASSERT_TRUE(world.run());
    world.now += 2 * kSecond;
    world.watch();
    EXPECT_EQ(late->ends, 0);
    world.now += kSecond;
    world.watch();
    ASSERT_TRUE(world.run());
    ASSERT_EQ(late->ends, 1);
    EXPECT_EQ(late->status.code(), Code::kTimeout);
    EXPECT_TRUE(says(*late, sends ? "no receive has taken it" : "no such message has arrived"))
        << late->status.message();
    EXPECT_EQ(other->ends, 1);
    EXPECT_TRUE(says(*other, "recv of 10 bytes with tag 1 from rank 2 (group 'g', rank 0)"));
  }
}

TEST(HostMessages, SendsBeforeTheGoodbyeAreReceived) {
  HostWorld world(3, PeerMemory::kRead, 1);
  send(world, 2, 1, 1, 100, 1);
  send(world, 2, 1, 2, 200, 2);
  const auto others = receive(world, 1, 0, 9, 10);
  ASSERT_TRUE(world.run());
  world.leave(2);
  for (int i = 0; i < 3; i++) {
    world.now += kSecond;
    world.watch();
    ASSERT_TRUE(world.run());
  }
  const auto first = receive(world, 1, 2, 1, 100), second = receive(world, 1, kAnyRank, 2, 200);
  ASSERT_TRUE(world.run());
  expect_got(*first, 2, 1);
  expect_got(*second, 2, 2);
  send(world, 0, 1, 9, 10, 3);
  ASSERT_TRUE(world.run());
  expect_got(*others, 0, 3);
  const auto never = receive(world, 1, 2, 1, 100);
  ASSERT_TRUE(world.run());
  ASSERT_EQ(never->ends, 1);
  EXPECT_EQ(never->status.code(), Code::kPeerLost);
  EXPECT_TRUE(says(*never, "rank 2 has left the group")) << never->status.message();
}

TEST(HostMessages, RankThatLeavesWithoutSendingFailsItsReceiver) {
  for (const bool any : {false, true}) {
    HostWorld world(2, PeerMemory::kRead, 1);
    const auto r = receive(world, 1, any ? kAnyRank : Member{0}, 1, 100);
    world.leave(0);
    world.watch();
    ASSERT_TRUE(world.run());
    EXPECT_EQ(r->ends, 0) << "its last words may be on their way";
    world.now += kSecond;
    world.watch();
    ASSERT_TRUE(world.run());
    ASSERT_EQ(r->ends, 1);
    EXPECT_EQ(r->status.code(), Code::kPeerLost);
  }
}

TEST(HostMessages, EndOfAnUnrelatedRankHarmsNothing) {
  HostWorld world(4, PeerMemory::kRead, 1);
  const auto r = receive(world, 1, 0, 1, 100);
  world.kill(3);
  world.watch();
  ASSERT_TRUE(world.run());
  send(world, 0, 1, 1, 100, 8);
  ASSERT_TRUE(world.run());
  expect_got(*r, 0, 8);
  const auto any = receive(world, 1, kAnyRank, 2, 100);
  world.watch();
  ASSERT_TRUE(world.run());
  EXPECT_EQ(any->ends, 1);
  EXPECT_TRUE(is_error(any->status, ErrorId::rank_lost, {{"rank", "3"}}));
}

TEST(HostMessages, ARankLeavesWhenItsMessagesAreOver) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto s = send(world, 0, 1, 3, 500'000, 1);
  ASSERT_TRUE(world.run());
  Status outcome;
  EXPECT_FALSE(world.core(0).may_leave(false, false, outcome));
  EXPECT_TRUE(outcome.ok());
  (void)world.core(0).may_leave(false, true, outcome);
  EXPECT_EQ(outcome.code(), Code::kTimeout);
  EXPECT_NE(outcome.message().find("send of 500000 bytes with tag 3 to rank 1"), std::string::npos)
      << outcome.message();
  EXPECT_NE(outcome.message().find("1 operation(s) in flight"), std::string::npos);
  world.core(0).deliver();
  EXPECT_EQ(s->ends, 1);
}

// A source that is only partly readable goes through the ring as far as it is readable.
TEST(HostMessages, ASourceThatIsNotThereYetIsSentAsItComes) {
  HostWorld world(2, PeerMemory::kRead, 1);
  const auto s = a_send(0, 1, 0, 500'000, 4);
  MessagePost post = post_of(s);
  const auto region = post.memory.region;
  region->set_readable(0);
  world.post(0, std::move(post));
  const auto r = receive(world, 1, 0, 0, 500'000);
  ASSERT_TRUE(world.run());
  EXPECT_EQ(r->ends, 0);
  for (const uint64_t there : {100'000u, 300'000u, 500'000u}) {
    region->set_readable(there);
    world.core(0).disarm();
    world.turn(0);
    ASSERT_TRUE(world.run());
  }
  expect_got(*r, 0, 4);
  EXPECT_EQ(world.total(Counter::shm_direct_bytes), 0u);
}

}  // namespace
}  // namespace mcast::test
