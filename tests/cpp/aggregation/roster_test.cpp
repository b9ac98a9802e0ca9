// The group agrees on its stations while it runs: from which operation on, which stations are left
// out and why. Neither stations nor their end harm the group.
#include <gtest/gtest.h>

#include "aggregation/roster_world.h"
#include "base/rng.h"
#include "support/errors.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Roster, IsInForceFromTheSameOperationOnAllRanks) {
  for (const uint32_t n : {2u, 3u, 7u}) {
    RosterWorld w(ranks(n));
    FakeStation &a = w.add(), &b = w.add();
    w.propose({&a, &b});
    ASSERT_TRUE(w.settles());
    ASSERT_TRUE(w.changes(1));
    EXPECT_EQ(w.in_force.size(), 2u);
    EXPECT_TRUE(w.lost.empty());
    for (Member r = 0; r < n; r++) {
      const StationSet* const set = w.set(r, 0);
      ASSERT_NE(set, nullptr);
      EXPECT_EQ(difference(set, w.set(0, 0)), "");
      EXPECT_EQ(set->version, 1u);
      ASSERT_EQ(set->stations.size(), 2u);
      EXPECT_EQ(set->stations[0].member, n);
      EXPECT_EQ(set->stations[1].member, n + 1);
      EXPECT_NE(set->stations[0].hash, set->stations[1].hash);
      EXPECT_FALSE(set->stations[0].out || set->stations[1].out);
    }
    // Each rank sends the roster to each station before anything else of this version.
    w.run_for(kMilli);
    ASSERT_EQ(a.told().size(), n);
    for (const FakeStation::Told& told : a.told()) {
      EXPECT_EQ(told.from, 0u);
      EXPECT_EQ(told.roster.stations, (std::vector{a.entry(), b.entry()}));
    }
  }
}

// Ranks have made different numbers of calls. The cut-over takes effect after the last operation
// that any of them has started, and posts that reach it wait.
TEST(Roster, ComesAfterTheLastOperationThatAnybodyHasStarted) {
  RosterWorld w(ranks(5));
  FakeStation& a = w.add();
  Runs runs;
  for (uint64_t id = 1; id <= 3; id++) runs.push_back(w.c.allgather(3, 40'000, id));
  w.propose({&a});
  ASSERT_TRUE(w.changes(1));
  for (Member r = 0; r < 5; r++) {
    EXPECT_EQ(w.set(r, 2), nullptr) << "rank " << r;
    ASSERT_NE(w.set(r, 3), nullptr) << "rank " << r;
    EXPECT_EQ(w.set(r, 3)->from, 3u);
  }
  for (Member r = 0; r < 5; r++) {
    for (uint64_t id = r == 3 ? 4 : 1; id <= 4; id++) runs.push_back(w.c.allgather(r, 40'000, id));
  }
  ASSERT_TRUE(w.run([&] { return all_done(runs); }));
  expect_good(runs, 5);
}

// One rank does not reach one of two stations: connections are reset, nothing is answered, or the
// engine of its host may not connect to it.
TEST(Roster, UnreachableStationIsLeftOutWithTheReason) {
  for (const std::string why : {"reset by peer", "no answer for 0.5 s", "is too far"}) {
    for (const Member deaf : {0, 1, 4}) {
      ClusterOptions options = ranks(5);
      uint16_t far = 0;
      if (why == "is too far") {
        options.accounts = [&](Member r) {
          LaneAccounts accounts;
          if (r != deaf) return accounts;
          accounts.may_reach = [&far](const std::string&, uint16_t port) {
            return port == far ? Status(Code::kInvalidArgument, "it is too far") : Status();
          };
          return accounts;
        };
      }
      RosterWorld w(options);
      FakeStation &a = w.add(), &b = w.add();
      ASSERT_NE(a.entry().port, b.entry().port);
      far = b.entry().port;
      if (why == "reset by peer") {
        w.c.net().reset(deaf, b.index());
      } else if (why == "no answer for 0.5 s") {
        w.c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes) {
          return from != b.index() || to != deaf;
        });
      }
      const Nanos start = w.c.now();
      w.propose({&a, &b});
      ASSERT_TRUE(w.settles());
      ASSERT_TRUE(w.changes(1));
      EXPECT_LT(w.c.now() - start, RosterChange::kPatience + 100 * kMilli);
      EXPECT_EQ(w.in_force, std::vector{a.entry().uid});
      ASSERT_EQ(w.lost.size(), 1u);
      EXPECT_EQ(w.lost[0].first, b.entry().uid);
      const std::string rank = "rank " + std::to_string(deaf) + " cannot reach the station at sim:";
      EXPECT_TRUE(contains(w.lost[0].second, rank)) << w.lost[0].second;
      EXPECT_TRUE(contains(w.lost[0].second, why)) << w.lost[0].second;
      for (Member r = 0; r < 5; r++) {
        EXPECT_EQ(difference(w.set(r, 0), w.set(0, 0)), "");
        ASSERT_EQ(w.set(r, 0)->stations.size(), 1u);
        EXPECT_EQ(w.set(r, 0)->version, 2u);
      }
      w.run_for(10 * kMilli);
      EXPECT_EQ(w.parted, std::vector{b.entry().uid});
    }
  }
}

// A rank's reply covers its whole subtree, whether or not the report of a loss has arrived. A
// station whose thread gets no CPU is simulated by not polling it.
TEST(Roster, ASlowStationIsWaitedForAsPatientlyAsOneInForce) {
  for (const Nanos patience : {kSecond, 10 * kSecond}) {
    ClusterOptions options = ranks(5);
    options.group.aggregator_patience = patience;
    RosterWorld w(options);
    w.propose({&w.add()});
    w.c.run_for(800 * kMilli);
    w.run_for(100 * kMilli);
    const bool waited = patience > kSecond;
    EXPECT_EQ(w.c.total(Counter::agg_lost), waited ? 0u : 5u);
    EXPECT_EQ(w.c.total(Counter::roster_changes), waited ? 5u : 0u);
  }
}

TEST(Roster, ReplyCoversTheSubtree) {
  for (const Member deaf : {1, 4}) {
    RosterWorld w(ranks(5));
    FakeStation &a = w.add(), &b = w.add();
    w.c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
      wire::FrameHeader h;
      if (wire::parse_frame(frame, h) && h.type == wire::FrameType::kAggGone) return false;
      return from != b.index() || to != deaf;
    });
    w.propose({&a, &b});
    ASSERT_TRUE(w.changes(1));
    EXPECT_EQ(w.in_force, std::vector{a.entry().uid});
    for (Member r = 0; r < 5; r++) {
      ASSERT_EQ(w.set(r, 0)->stations.size(), 1u) << "rank " << r;
      EXPECT_EQ(w.set(r, 0)->version, 2u);
    }
  }
}

TEST(Roster, WithoutStationsNothingIsDrawn) {
  RosterWorld w(ranks(4));
  w.propose({});
  ASSERT_TRUE(w.settles());
  FakeStation& a = w.add();
  a.mute();
  w.propose({&a});
  ASSERT_TRUE(w.settles());
  EXPECT_TRUE(w.in_force.empty());
  w.run_for(kSecond);
  EXPECT_EQ(w.c.total(Counter::roster_changes), 0u);
  EXPECT_EQ(w.set(0, 0), nullptr);
}

// Two rosters in a row. A station that stays keeps its number. One that goes is disconnected when
// the operations before the cut-over are over. One that joins gets a number that has never been
// used.
TEST(Roster, StationsComeGoAndStay) {
  RosterWorld w(ranks(3));
  FakeStation &a = w.add(), &b = w.add(), &d = w.add();
  w.propose({&a, &b});
  ASSERT_TRUE(w.changes(1));
  Runs early;
  for (Member r = 0; r < 2; r++) early.push_back(w.c.allgather(r, 40'000, 1));  // rank 2 is late
  w.run_for(10 * kMilli);
  w.propose({&b, &d});
  ASSERT_TRUE(w.changes(2));
  w.run_for(kSecond);
  EXPECT_TRUE(w.parted.empty());  // operation 0 may still need it
  for (Member r = 0; r < 3; r++) {
    EXPECT_EQ(w.set(r, 0)->version, 1u);
    ASSERT_EQ(w.set(r, 1)->version, 2u);
    EXPECT_EQ(w.set(r, 1)->stations[0].member, w.set(r, 0)->stations[1].member);
    EXPECT_EQ(w.set(r, 1)->stations[1].member, 3u + 2);
  }
  early.push_back(w.c.allgather(2, 40'000, 1));
  ASSERT_TRUE(w.run([&] { return all_done(early) && !w.parted.empty(); }));
  EXPECT_EQ(w.parted, std::vector{a.entry().uid});
  EXPECT_EQ(b.told().size(), 6u);  // by three ranks, of two rosters
  // A set that is already in force needs no cut-over.
  w.propose({&b, &d});
  ASSERT_TRUE(w.settles());
  w.propose({});
  ASSERT_TRUE(w.changes(3));
  EXPECT_TRUE(w.in_force.empty());
  EXPECT_TRUE(w.set(1, 1)->stations.empty());
}

// A station is lost after all ranks had reached it, before the cut-over: it is in force and out on
// all ranks, the top is notified, and the next roster is without it.
TEST(Roster, StationLostBeforeTheCutoverIsOutOnAllRanks) {
  for (const Member who : {0, 1, 4}) {
    RosterWorld w(ranks(5));
    FakeStation &a = w.add(), &b = w.add();
    bool lost = false;
    w.c.net().set_frame_hook([&](size_t, size_t to, Channel, ConstBytes frame) {
      wire::FrameHeader h;
      const bool line = wire::parse_frame(frame, h) && h.type == wire::FrameType::kRosterStop;
      if (line && to == 2 && !std::exchange(lost, true)) w.c.net().reset(who, b.index());
      return true;
    });
    w.propose({&a, &b});
    ASSERT_TRUE(w.changes(1));
    w.run_for(10 * kMilli);
    ASSERT_EQ(w.lost.size(), 1u);
    EXPECT_EQ(w.lost[0].first, b.entry().uid);
    for (Member r = 0; r < 5; r++) {
      EXPECT_EQ(difference(w.set(r, 0), w.set(0, 0)), "");
      ASSERT_EQ(w.set(r, 0)->stations.size(), 2u);
      EXPECT_FALSE(w.set(r, 0)->stations[0].out);
      EXPECT_TRUE(w.set(r, 0)->stations[1].out) << "rank " << r;
    }
    w.propose({&a});
    ASSERT_TRUE(w.changes(2));
    EXPECT_EQ(w.in_force, std::vector{a.entry().uid});
  }
}

// The stations in force are proposed again while others are tried. The ranks' replies about those
// others are then outdated, but not a violation of the protocol.
TEST(Roster, IsGivenUpForTheOneInForce) {
  RosterWorld w(ranks(4));
  FakeStation &a = w.add(), &b = w.add();
  w.propose({&a});
  ASSERT_TRUE(w.changes(1));
  w.c.pause(3, true);
  w.propose({&a, &b});
  w.run_for(100 * kMilli);
  for (int times = 0; times < 2; times++) {
    w.propose({&a});
    w.run_for(100 * kMilli);
  }
  w.c.pause(3, false);
  w.run_for(2 * kSecond);
  EXPECT_EQ(w.c.total(Counter::roster_changes), 4u);
  EXPECT_EQ(w.c.total(Counter::malformed), 0u);
  EXPECT_GT(w.c.total(Counter::stale), 0u);
  EXPECT_EQ(w.in_force, std::vector{a.entry().uid});
  w.propose({&a, &b});
  ASSERT_TRUE(w.changes(2));
  EXPECT_EQ(w.in_force.size(), 2u);
}

// A rank that is stopped while the others try the stations delays only the roster.
TEST(Roster, ALateRankIsWaitedForAndHoldsUpNoOperation) {
  RosterWorld w(ranks(4));
  FakeStation& a = w.add();
  w.c.pause(3, true);
  w.propose({&a});
  w.run_for(1500 * kMilli);  // no operation runs that a dead rank would delay
  EXPECT_EQ(w.c.total(Counter::roster_changes), 0u);
  EXPECT_FALSE(w.c.group(0).core().failed());
  w.c.pause(3, false);
  ASSERT_TRUE(w.changes(1));
  EXPECT_EQ(w.in_force.size(), 1u);
}

// A rank that has left never replies. Either there is no cut-over, or it delays no operation.
TEST(Roster, ARankThatHasLeftHoldsUpNoCall) {
  for (const bool before : {true, false}) {
    RosterWorld w(ranks(4));
    FakeStation& a = w.add();
    if (before) {
      w.c.group(2).core().leave(w.c.clock(2));
      w.run_for(kMilli);
    } else {
      w.c.net().set_frame_hook([&](size_t, size_t to, Channel, ConstBytes frame) {
        wire::FrameHeader h;
        const bool line = wire::parse_frame(frame, h) && h.type == wire::FrameType::kRosterStop;
        return !line || to != 2;
      });
    }
    w.propose({&a});
    w.run_for(100 * kMilli);
    EXPECT_EQ(w.c.total(Counter::roster_changes), 0u);
    Runs runs;
    runs.push_back(w.c.allgather(0, 1000, 1));
    if (!before) {
      w.run_for(100 * kMilli);
      EXPECT_FALSE(runs[0]->done());  // it waits for the cut-over
      w.c.group(2).core().leave(w.c.clock(2));
    }
    ASSERT_TRUE(w.run([&] { return all_done(runs); }, kSecond));
    EXPECT_TRUE(
        is_error(runs[0]->status, ErrorId::rank_left, {{"rank", "2"}, {"operations", "0"}}));
  }
}

TEST(Roster, RankThatDiesDuringTheCutoverFailsTheGroup) {
  RosterWorld w(ranks(4));
  FakeStation& a = w.add();
  w.c.net().set_frame_hook([&](size_t, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    const bool line = wire::parse_frame(frame, h) && h.type == wire::FrameType::kRosterStop;
    if (line && to == 2) w.c.kill(2);
    return true;
  });
  w.propose({&a});
  w.run_for(10 * kMilli);
  Runs runs;
  runs.push_back(w.c.allgather(0, 1000, 1));
  ASSERT_TRUE(w.run([&] { return all_done(runs); }, 10 * kSecond));
  EXPECT_TRUE(is_error(runs[0]->status, ErrorId::rank_lost, {{"rank", "2"}}));
}

// Unexpected frames are counted and change nothing.
TEST(Roster, UnexpectedFramesAreCounted) {
  RosterWorld w(ranks(3));
  FakeStation& a = w.add();
  w.propose({&a});
  ASSERT_TRUE(w.changes(1));
  const uint64_t tag = w.c.group(0).core().params().tag;
  const auto say = [&](Member from, Member to, wire::FrameType type, const wire::Writer& body) {
    std::vector<std::byte> frame(wire::kFrameHeader);
    const ConstBytes text = body.bytes();
    wire::write_frame_header(frame.data(), {type, 0, from, tag, 9, 9}, {&text, 1});
    frame.insert(frame.end(), text.begin(), text.end());
    w.c.net().inject_frame(from, to, Channel::kControl, frame);
  };
  wire::Writer version, later, empty, reach, gone;
  version.put<uint32_t>(1);
  later.put<uint32_t>(2);
  wire::put_roster(empty, {2, false, {}});
  wire::put_roster_reach(reach, {1, {true}, {false}});
  wire::put_agg_gone(gone, {1, 1, "rank 1 is no station"});
  using wire::FrameType;
  const uint64_t before = w.c.total(Counter::malformed);
  say(1, 0, FrameType::kRoster, empty);        // not from the parent
  say(0, 1, FrameType::kRoster, version);      // outdated
  say(0, 1, FrameType::kRosterStop, version);  // cut-over already agreed
  say(0, 1, FrameType::kRosterStop, later);    // unknown roster
  say(1, 0, FrameType::kRosterReady, version);
  say(0, 1, FrameType::kRosterAt, version);
  say(1, 0, FrameType::kRosterReach, reach);    // not requested
  say(1, 0, FrameType::kRosterReach, version);  // no body
  say(1, 0, FrameType::kAggGone, gone);
  say(1, 0, FrameType::kAggGone, version);
  w.run_for(10 * kMilli);
  EXPECT_EQ(w.c.total(Counter::malformed), before + 10);
  EXPECT_EQ(w.c.total(Counter::roster_changes), 3u);
  Runs runs = allgather_all(w.c, 10'000, 1);
  ASSERT_TRUE(w.run([&] { return all_done(runs); }));
  expect_good(runs, 3);
}

// Random calls of all ranks, each rank at its own times.
struct RandomCalls {
  RandomCalls(RosterWorld& world, Rng& random) : w(world), rng(random), called(world.c.size()) {}
  void round() {
    rounds++;
    for (Member r = 0; r < w.c.size(); r++) {
      w.c.at(w.c.now() + static_cast<Nanos>(rng.below(30 * kMilli)),
             [this, r] { runs.push_back(w.c.allgather(r, 20'000, ++called[r])); });
    }
  }
  bool over() const { return runs.size() == rounds * w.c.size() && all_done(runs); }

  RosterWorld& w;
  Rng& rng;
  std::vector<uint64_t> called;  // by rank
  Runs runs;
  uint64_t rounds = 0;
};

// Rosters arrive at any time, stations fall silent, die and lose ranks, clocks differ. Operations
// continue, and for every operation all ranks have the same stations.
std::string random_rosters(uint64_t seed) {
  Rng rng(seed);
  ClusterOptions options = ranks(2 + static_cast<uint32_t>(rng.below(7)), rng.below(2) == 0);
  options.net.seed = seed;
  options.net.jitter = static_cast<Nanos>(rng.below(5 * kMilli));
  options.group.arity = 2 + static_cast<uint32_t>(rng.below(3));
  RosterWorld w(options);
  RandomCalls calls(w, rng);
  // The sets of all ranks, recorded while they are in force.
  std::map<Sequence, StationSet> sets;
  std::string wrong;
  const auto look = [&] {
    for (Member r = 0; r < w.c.size(); r++) {
      const StationSet* const set = w.c.fold(r).table().latest();
      if (set == nullptr) continue;
      const auto [at, is_new] = sets.try_emplace(set->version, *set);
      if (wrong.empty() && !is_new) wrong = difference(&at->second, set);
    }
    return !wrong.empty();
  };
  for (int step = 0; step < 25; step++) {
    const uint64_t what = rng.below(8);
    if (what < 2) {
      w.add();
    } else if (what == 2 && !w.stations.empty()) {
      w.stations[rng.below(w.stations.size())]->mute(rng.below(3) > 0);
    } else if (what == 3 && !w.stations.empty()) {
      w.stations[rng.below(w.stations.size())]->kill();
    } else if (what == 4 && !w.stations.empty()) {
      w.c.net().reset(rng.below(w.c.size()), w.stations[rng.below(w.stations.size())]->index());
    } else if (what < 7) {
      std::vector<const FakeStation*> some;
      for (const auto& s : w.stations) {
        if (rng.below(3) > 0) some.push_back(s.get());
      }
      w.propose(some);
    } else {
      calls.round();
    }
    w.run([&, end = w.c.now() + static_cast<Nanos>(rng.below(400 * kMilli))] {
      return look() || w.c.now() >= end;
    });
  }
  calls.round();
  w.propose({});
  const bool over = w.run([&] { return look() || calls.over(); }, 100 * kSecond);
  if (!wrong.empty()) return wrong;
  if (!over) return "operations hang";
  w.run_for(2 * kSecond);
  for (const auto& run : calls.runs) {
    if (!run->status.ok() || !run->check(w.c.size()).empty()) return run->status.to_string();
  }
  if (!w.in_force.empty()) return "stations are in force that were not proposed";
  return w.c.spins() > 2 ? "a lane would spin" : "";
}

TEST(RosterSchedules, AllRanksHaveTheSameStations) { for_seeds(seeds(400), random_rosters); }

}  // namespace
}  // namespace mcast::test
