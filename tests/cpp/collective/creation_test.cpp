// How a group is made on its lanes: ranks that join late or never, networks that carry multicast to
// some ranks only, the cost of the probe, and when no probe is needed.
#include <gtest/gtest.h>

#include <map>

#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

TEST(Creation, OneDeafRankPutsTheGroupOnTheRing) {
  for (const bool require : {false, true}) {
    ClusterOptions o = ranks(4, true);
    Cluster c(o);
    c.net().block_multicast(1, 3);
    GroupParams p = ranks(4).group;
    p.multicast.required = require;
    p.probe_timeout = 500 * kMilli;
    const size_t g = c.add_group(p);
    for (Member r = 0; r < 4; r++) {
      GroupCore& core = c.group(r, g).core();
      ASSERT_EQ(core.failed(), require);
      const std::string why = require ? core.failure().message() : core.path_reason();
      EXPECT_NE(why.find("rank 3 does not hear rank 1"), std::string::npos) << why;
      if (!require) {
        EXPECT_EQ(core.path(), GroupCore::Path::kRing);
      }
    }
    if (require) continue;
    Runs runs;
    for (Member r = 0; r < 4; r++) runs.push_back(c.allgather(r, 300001, 1, kNever, g));
    for (Member r = 0; r < 4; r++) runs.push_back(c.broadcast(r, 2, 1000, 2, kNever, g));
    finish(c, runs);
    EXPECT_GT(c.total(Counter::ring_bytes_sent, g), 0u);
  }
}

// A rank that cannot be reached looks like a late rank at first. The transport detects it (its
// connections break), or the creation's time limit passes; then the error names it.
TEST(Creation, CreationNamesARankThatIsDeadOrSilent) {
  for (const bool dead : {true, false}) {
    Cluster c(ranks(4));
    if (dead) {
      c.kill(3);
      c.run_for(10 * kMilli);
    } else {
      c.net().isolate(3);
    }
    GroupParams p = ranks(4).group;
    p.probe_timeout = 500 * kMilli;
    const size_t g = c.add_group(p);
    for (const Member r : {0, 1, 2}) {
      GroupCore& core = c.group(r, g).core();
      EXPECT_EQ(core.failed(), dead);
      const std::string why = dead ? core.failure().message() : core.probe_text();
      EXPECT_TRUE(why.find("rank 3 ") != std::string::npos ||
                  why.find("rank(s) 3 ") != std::string::npos)
          << "rank " << r << ": " << why;
    }
  }
}

// A group's probe result is valid for other groups among its members, while it lives and for a
// while after.
TEST(Creation, GroupsAmongTheSameRanksNeedOneProbe) {
  ClusterOptions o = ranks(5);
  o.group.agreed.chunk = 704;
  Cluster c(o);
  EXPECT_GT(c.total(Counter::probes_sent), 0u);
  const size_t second = c.add_group(o.group);
  EXPECT_EQ(c.total(Counter::probes_sent, second), 0u);
  for (Member r = 0; r < 5; r++) {
    EXPECT_EQ(c.group(r, second).core().path(), GroupCore::Path::kMulticast);
    EXPECT_TRUE(c.group(r, second).core().path_reason().find("another group") != std::string::npos);
  }
  Runs runs;
  for (Member r = 0; r < 5; r++) runs.push_back(c.allgather(r, 100000, 1, kNever, second));
  finish(c, runs);

  // A group with larger datagrams, or one that requires multicast, makes its own probe.
  for (const bool must : {false, true}) {
    GroupParams p = o.group;
    p.multicast.required = must;
    if (!must) p.agreed.chunk *= 2;
    const size_t g = c.add_group(p);
    EXPECT_GT(c.total(Counter::probes_sent, g), 0u) << must;
    EXPECT_EQ(c.group(0, g).core().path(), GroupCore::Path::kMulticast);
  }
  c.run_for(200 * kSecond);
  const size_t late = c.add_group(o.group);
  EXPECT_GT(c.total(Counter::probes_sent, late), 0u) << "long ago";
}

// All members have joined when it begins, so one probe of each is enough: P * P arrive, and no
// more.
TEST(Creation, AProbeOfEachMemberIsEnough) {
  for (const uint32_t n : {64u, 256u, 1024u}) {
    ClusterOptions o = ranks(n);
    o.group.arity = 32;
    Cluster c(o);
    EXPECT_EQ(c.group(0).core().path(), GroupCore::Path::kMulticast);
    const uint64_t sent = c.total(Counter::probes_sent);
    RecordProperty("probes_of_" + std::to_string(n), static_cast<int>(sent));
    RecordProperty("microseconds_of_" + std::to_string(n), static_cast<int>(c.now() / kMicro));
    EXPECT_GE(sent, n);
    EXPECT_LE(sent, n + n / 4) << n;
  }
}

// A probe is made if one member lacks the earlier result.
TEST(Creation, ProbesIfOneRankLacksAResult) {
  Cluster c(ranks(5));
  for (Member r : {2, 4}) c.lane(r).remove_group(c.group(r).core().params().tag);
  const size_t g = c.add_group(ranks(5).group);
  for (Member r = 0; r < 5; r++) {
    EXPECT_GT(c.group(r, g).counters().get(Counter::probes_sent), 0u) << "rank " << r;
    EXPECT_EQ(c.group(r, g).core().path(), GroupCore::Path::kMulticast);
  }
}

// If the network stops carrying multicast to some ranks, later groups know it from the first group
// that finds out.
TEST(Creation, ALossOfMulticastIsRemembered) {
  ClusterOptions o = ranks(4);
  o.group.agreed.chunk = 704;
  Cluster c(o);
  c.net().block_multicast(1, 3);
  GroupParams larger = o.group;
  larger.agreed.chunk *= 2;  // larger datagrams are probed
  const size_t found = c.add_group(larger);
  ASSERT_EQ(c.group(0, found).core().path(), GroupCore::Path::kRing);
  EXPECT_GT(c.total(Counter::probes_sent, found), 0u);
  const size_t next = c.add_group(o.group);
  for (Member r = 0; r < 4; r++) {
    EXPECT_EQ(c.group(r, next).core().path(), GroupCore::Path::kRing) << "rank " << r;
  }
}

// ---- late to the creation ----

ClusterOptions late(uint32_t n, const std::map<Member, Nanos>& delays) {
  ClusterOptions o = ranks(n);
  o.join_delay = [delays](Member r) {
    const auto it = delays.find(r);
    return it == delays.end() ? Nanos{0} : it->second;
  };
  return o;
}

// Members wait for each other to join before any clock runs, that of the probe or the liveness
// limit (here 2 s). The late rank is a leaf, an inner node, or the top.
TEST(Creation, RanksThatJoinLateCostTheGroupNothing) {
  for (const Nanos skew : {5 * kSecond, 60 * kSecond}) {
    for (const Member who : {0, 1, 2, 6}) {
      ClusterOptions o = late(7, {{who, skew}});
      o.group.multicast.required = true;
      Cluster c(o);
      c.run_for(skew);
      for (Member r = 0; r < 7; r++) {
        GroupCore& core = c.group(r).core();
        ASSERT_FALSE(core.failed()) << core.failure().to_string();
        EXPECT_EQ(core.path(), GroupCore::Path::kMulticast) << "rank " << r << " " << skew;
      }
      finish(c, allgather_all(c, 50000, 1));
    }
  }
}

TEST(Creation, RanksMayJoinOneAfterTheOther) {
  ClusterOptions o = late(7, {{0, 30 * kSecond},
                              {1, 10 * kSecond},
                              {2, 55 * kSecond},
                              {4, 20 * kSecond},
                              {6, 40 * kSecond}});
  Cluster c(o);
  for (Member r = 0; r < 7; r++) {
    ASSERT_FALSE(c.group(r).core().failed()) << c.group(r).core().failure().to_string();
    EXPECT_EQ(c.group(r).core().path(), GroupCore::Path::kMulticast) << "rank " << r;
  }
  EXPECT_LE(c.spins(), 3u);
}

// When the time for the creation is over, the engine's error on every rank names the missing rank.
TEST(Creation, ARankThatNeverJoinsIsNamedByAll) {
  for (const Member who : {0, 1, 4, 6}) {
    ClusterOptions o = late(7, {{who, kNever}});
    Cluster c(o);
    for (Member r = 0; r < 7; r++) {
      if (r == who) continue;
      GroupCore& core = c.group(r).core();
      ASSERT_FALSE(core.failed()) << core.failure().to_string();
      EXPECT_NE(core.probe_text().find("rank(s) " + std::to_string(who) + " "), std::string::npos)
          << "rank " << r << ": " << core.probe_text();
    }
    EXPECT_LE(c.spins(), 3u);
    EXPECT_EQ(c.total(Counter::probes_sent), 0u);
  }
}

// A rank that had joined and is cut off while the others wait for another one is dead, not late.
TEST(Creation, ARankThatIsLostWhileOthersWaitForAnotherIsNamed) {
  for (const bool dead : {true, false}) {
    Nanos delay = 0;
    ClusterOptions o = ranks(7);
    o.join_delay = [&delay](Member r) { return r == 6 ? delay : 0; };
    Cluster c(o);
    delay = 60 * kSecond;
    c.at(c.now() + 10 * kSecond, [&] {
      if (dead) {
        c.kill(3);
      } else {
        c.net().isolate(3);
      }
    });
    const size_t g = c.add_group(o.group, 20 * kSecond);
    for (const Member r : {0, 1, 2, 4, 5}) {
      ASSERT_TRUE(c.group(r, g).core().failed()) << "rank " << r;
      const Status& why = c.group(r, g).core().failure();
      EXPECT_TRUE(dead ? is_error(why, ErrorId::rank_lost, {{"rank", "3"}})
                       : is_error(why, ErrorId::rank_silent,
                                  {{"rank", "3"}, {"limit", seconds_text(kLiveness)}}));
    }
  }
}

// A rank that has received the decision may fail in its first operation before other ranks have
// received it. The creation still succeeds for them; only the operation fails. Holds on either
// path, and whether datagrams or frames report the failure.
TEST(Creation, FailureBeforeTheDecisionArrivesFailsTheOperationOnly) {
  for (const bool ring : {false, true}) {
    for (const bool frames : {false, true}) {
      Cluster c(ranks(7, ring));
      c.net().set_frame_hook([](size_t, size_t to, Channel, ConstBytes frame) {
        wire::FrameHeader header;
        return !(wire::parse_frame(frame, header) && to == 2 &&
                 header.type == wire::FrameType::kProbeDone);
      });
      c.net().set_datagram_hook([frames](size_t, size_t, ConstBytes datagram) {
        wire::DatagramHeader header;
        const bool aborts = wire::parse_datagram(datagram, header) == wire::ParseError::kNone &&
                            header.type == wire::DatagramType::kAbort;
        return aborts && frames ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
      });
      const size_t g = c.add_group(ranks(7, ring).group, kSecond);
      for (const Member r : {2, 5, 6}) {
        ASSERT_EQ(c.group(r, g).core().path(), GroupCore::Path::kUnknown) << "rank " << r;
      }
      c.group(1, g).core().fail(Status(Code::kMismatch, "the first operation"), 1, c.clock(1));
      c.run_for(kSecond);
      for (Member r = 0; r < 7; r++) {
        const GroupCore& core = c.group(r, g).core();
        EXPECT_EQ(core.path(), ring ? GroupCore::Path::kRing : GroupCore::Path::kMulticast)
            << "rank " << r << (frames ? " by frames" : "");
        EXPECT_TRUE(has(core.failure(), "the first operation")) << core.failure().to_string();
        ASSERT_NE(c.made(r, g), nullptr) << "rank " << r;
        EXPECT_TRUE(c.made(r, g)->ok()) << "rank " << r << ": " << c.made(r, g)->to_string();
      }
    }
  }
}

}  // namespace
}  // namespace mcast::test
