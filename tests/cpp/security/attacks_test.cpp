// Groups in modes auth and sealed under attack, with real keys and epochs of 200 datagrams.
// Captured datagrams are replayed, changed, truncated, sent ahead of the true ones, and forged
// without keys or with those of another group. Results stay exact to the byte, and every refusal is
// counted under its cause.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "crypto/library.h"
#include "support/program.h"
#include "wire/guarded_datagram.h"

namespace mcast::test {
namespace {

using Captured = std::vector<std::byte>;
using crypto::Mode;

class Attacks : public testing::TestWithParam<Mode> {
 protected:
  ClusterOptions options(uint32_t ranks = 4) const {
    ClusterOptions o;
    o.ranks = ranks;
    o.security = GetParam();
    o.net.seed = 11;
    return o;
  }
  // Broadcasts, all-gathers, small ones and reductions: some thousand datagrams in total.
  static Runs all_kinds(Cluster& c) {
    Runs runs;
    uint64_t id = 0;
    for (Member r = 0; r < c.size(); r++) {
      for (const size_t bytes : {size_t{100}, size_t{300001}}) {
        for (Member m = 0; m < c.size(); m++) runs.push_back(c.broadcast(m, r, bytes, id + 1));
        id++;
      }
    }
    for (Member m = 0; m < c.size(); m++) runs.push_back(c.allgather(m, 200003, id + 1));
    for (Member m = 0; m < c.size(); m++) runs.push_back(c.barrier(m));
    return runs;
  }
  static void run_exactly(Cluster& c) {
    Runs runs = all_kinds(c);
    ASSERT_TRUE(c.run([&] { return all_done(runs); }, 120 * kSecond));
    expect_good(runs, c.size());
  }
  static uint64_t refused(Cluster& c, Cause cause) {
    uint64_t sum = 0;
    for (Member r = 0; r < c.size(); r++) sum += c.lane(r).monitor().count(cause);
    return sum;
  }
  // Calls `f` before each datagram is delivered; `f` may inject forgeries.
  using Forge = std::function<void(size_t to, Captured datagram)>;
  static void before_each(Cluster& c, Forge f) {
    c.net().set_datagram_hook([f = std::move(f)](size_t from, size_t to, ConstBytes d) {
      if (from != to) f(to, {d.begin(), d.end()});
      return SimNetwork::Verdict::kPass;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, Attacks, testing::Values(Mode::kAuth, Mode::kSealed),
                         [](const auto& p) { return crypto::mode_name(p.param); });

TEST_P(Attacks, LossAndDamageAreRepaired) {
  Cluster c(options(5));
  c.net().faults().drop = 0.05;
  c.net().faults().corrupt = 0.05;
  c.net().faults().duplicate = 0.05;
  c.net().faults().reorder = 0.05;
  c.net().faults().reorder_delay = kMilli;
  run_exactly(c);
  EXPECT_GT(refused(c, Cause::forged), 0u) << "a tag finds what a checksum would";
  EXPECT_GT(c.total(Counter::duplicates), 0u);
  EXPECT_EQ(refused(c, Cause::source_moved), 0u) << "they came from where their members are";
}

// Attack 1 of the design: repetitions use new packet numbers, whatever they carry.
TEST_P(Attacks, NoPacketNumberIsUsedTwice) {
  ClusterOptions o = options();
  o.epochs.packets = 40;
  Cluster c(o);
  c.net().faults().drop = 0.2;
  std::set<std::pair<Member, uint64_t>> numbers;
  size_t sent = 0;
  uint32_t latest = 0;
  c.net().set_datagram_hook([&](size_t from, size_t to, ConstBytes d) {
    wire::GuardedHeader h;
    EXPECT_EQ(wire::parse_guarded(d, h), wire::ParseError::kNone);
    if (from == to) {
      sent++;
      numbers.emplace(h.inner.member, h.number);
      latest = std::max(latest, wire::epoch_of(h.number));
    }
    return SimNetwork::Verdict::kPass;
  });
  run_exactly(c);
  EXPECT_GT(c.total(Counter::remulticast_chunks), 0u);
  EXPECT_EQ(numbers.size(), sent);
  EXPECT_GT(latest, 2u) << "keys have gone on";
}

TEST_P(Attacks, ACaptureHoldsTensorsOnlyInClear) {
  Cluster c(options(2));
  std::vector<Captured> capture;
  before_each(c, [&](size_t, Captured d) { capture.push_back(std::move(d)); });
  constexpr size_t kBytes = 20000;
  std::vector<std::byte> tensor(kBytes);
  sim::fill_pattern(9, 0, tensor);
  Runs runs;
  for (Member m = 0; m < 2; m++) runs.push_back(c.broadcast(m, 0, kBytes, 9));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  expect_good(runs, 2);
  std::set<std::string> pieces;
  for (size_t at = 0; at + 16 <= kBytes; at++) {
    pieces.emplace(reinterpret_cast<const char*>(&tensor[at]), 16);
  }
  size_t found = 0;
  for (const Captured& d : capture) {
    for (size_t at = 0; at + 16 <= d.size(); at++) {
      found += pieces.count(std::string(reinterpret_cast<const char*>(&d[at]), 16));
    }
  }
  EXPECT_EQ(found > 0, GetParam() == Mode::kAuth) << found;
}

// Attack 2: a true header with other bytes, ahead of every true datagram.
TEST_P(Attacks, OtherBytesUnderATrueHeader) {
  Cluster c(options());
  before_each(c, [&](size_t to, Captured d) {
    std::fill(d.begin() + wire::kGuardedHeader, d.end(), std::byte{0x5a});
    c.net().inject(to, d);
  });
  run_exactly(c);
  EXPECT_GT(refused(c, Cause::forged), 100u);
}

TEST_P(Attacks, DatagramsWithAnyByteChangedAreRefused) {
  Cluster c(options(2));
  size_t at = 0;
  before_each(c, [&](size_t to, Captured d) {
    for (int i = 0; i < 20; i++) {
      Captured bad = d;
      bad[at++ % bad.size()] ^= std::byte{0x10};
      c.net().inject(to, bad);
    }
    Captured cut(d.begin(), d.begin() + static_cast<ptrdiff_t>(at % d.size()));
    c.net().inject(to, cut);
  });
  run_exactly(c);
  for (const Cause cause :
       {Cause::forged, Cause::forged_header, Cause::malformed, Cause::downgraded}) {
    EXPECT_GT(refused(c, cause), 0u) << cause_name(cause);
  }
}

// Attack 3: everything is repeated, at once and later: in the same operation, in a later one, and
// to another group. (A rail is also just a group with its own tag and keys.)
TEST_P(Attacks, EverythingIsReplayed) {
  Cluster c(options());
  GroupParams other = c.group(0).core().params();
  other.multicast.guard = nullptr;
  other.tag--;  // the cluster gives it another tag
  const size_t g = c.add_group(other);
  Rng rng(3);
  before_each(c, [&](size_t to, Captured d) {
    c.net().inject(to, d);
    for (const Nanos later : {Nanos{100} * kMicro, kMilli, Nanos{30} * kMilli}) {
      c.at(c.now() + static_cast<Nanos>(rng.below(static_cast<uint64_t>(later))),
           [&c, to, d] { c.net().inject(to, d); });
    }
    // Pretends to be the other group's: the header is authenticated, so its tag is wrong then.
    wire::GuardedHeader h;
    if (wire::parse_guarded(d, h) != wire::ParseError::kNone) return;
    h.inner.group_tag =
        c.group(0, h.inner.group_tag == c.group(0).core().params().tag ? g : 0).core().params().tag;
    wire::write_guarded(d.data(), h);
    c.net().inject(to, d);
  });
  run_exactly(c);
  Runs runs;
  for (Member m = 0; m < c.size(); m++) runs.push_back(c.allgather(m, 100001, 77, kNever, g));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  expect_good(runs, c.size());
  EXPECT_GT(refused(c, Cause::replayed), 0u) << "positions and probes";
  EXPECT_GT(c.total(Counter::duplicates) + c.total(Counter::stale), 1000u) << "and data";
  EXPECT_GT(refused(c, Cause::forged_header), 100u) << "of the other group";
  EXPECT_EQ(refused(c, Cause::forged), 0u) << "the keys were never asked for them";
}

// A datagram that was captured elsewhere, unchanged and with the header that it would need here.
struct Elsewhere {
  const char* name;
  void (*there)(ClusterOptions& options);  // difference of the other group
  Cause as_it_is;
};
constexpr uint64_t kOtherTag = 1u << 20;
constexpr Elsewhere kElsewhere[] = {
    {"lane 0 of the same group", [](ClusterOptions& o) { o.group.lane ^= 1; }, Cause::foreign},
    {"another rail", [](ClusterOptions& o) { o.group.tag += kOtherTag; }, Cause::foreign},
    {"the group before it was made again",
     [](ClusterOptions& o) { o.group.tag += kOtherTag, o.group.first_sequence = 3; },
     Cause::foreign},
    {"a job with another secret and the same tag",
     [](ClusterOptions& o) { o.secret = [](Member) { return uint64_t{4711}; }; },
     Cause::forged_header},
    {"the other mode",
     [](ClusterOptions& o) {
       o.security = o.security == Mode::kAuth ? Mode::kSealed : Mode::kAuth;
     },
     Cause::downgraded}};

class Played : public Attacks {
 protected:
  // Some datagrams that a group has sent to its rank 1.
  static std::vector<Captured> capture(const ClusterOptions& o) {
    std::vector<Captured> all;
    Cluster c(o);
    before_each(c, [&](size_t to, Captured d) {
      if (to == 1 && all.size() < 500) all.push_back(std::move(d));
    });
    run_exactly(c);
    return all;
  }
  // With the tag, lane and mode of `here`; its filter and authentication tag stay unchanged.
  static Captured adapted(Captured d, const GroupParams& here, Mode mode) {
    wire::GuardedHeader h;
    EXPECT_EQ(wire::parse_guarded(d, h), wire::ParseError::kNone);
    h.inner.group_tag = here.tag;
    h.inner.lane = here.lane;
    h.sealed = mode == Mode::kSealed;
    wire::write_guarded(d.data(), h);
    return d;
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, Played, testing::Values(Mode::kAuth, Mode::kSealed),
                         [](const auto& p) { return crypto::mode_name(p.param); });

// Attack 3 from outside: datagrams captured from another group's host on lane 0, on another rail,
// in another epoch of the group, or in another job. No byte is accepted, each is counted under its
// cause and its source, and no member's key is worn out.
TEST_P(Played, ElsewhereIsRefusedByCauseAndSource) {
  for (const Elsewhere& other : kElsewhere) {
    SCOPED_TRACE(other.name);
    ClusterOptions there = options(), here = options();
    here.group.lane = 1;
    here.accounts = [](Member) {
      LaneAccounts accounts;
      accounts.watch = true;
      return accounts;
    };
    there.group.lane = here.group.lane;
    other.there(there);
    const std::vector<Captured> captured = capture(there);
    ASSERT_EQ(captured.size(), 500u);
    Cluster c(here);
    const auto stranger = c.net().attach();
    const GroupParams& params = c.group(0).core().params();
    uint64_t played = 0;
    before_each(c, [&](size_t to, const Captured&) {
      const Captured& d = captured[played++ % captured.size()];
      c.net().inject(to, d, stranger->index());
      c.net().inject(to, adapted(d, params, GetParam()), stranger->index());
    });
    run_exactly(c);
    c.run_for(50 * kMilli);
    ASSERT_GT(played, 1000u);
    const bool same = other.as_it_is == Cause::forged_header;
    EXPECT_EQ(refused(c, Cause::forged_header), same ? 2 * played : played);
    EXPECT_EQ(refused(c, other.as_it_is), same ? 2 * played : played);
    EXPECT_EQ(refused(c, Cause::forged), 0u) << "the keys were never asked for them";
    const std::string its = c.net().source_of(stranger->index()).host_text();
    for (Member r = 0; r < c.size(); r++) {
      const auto sources = c.lane(r).monitor().top(10);
      ASSERT_EQ(sources.size(), 1u) << r;
      EXPECT_EQ(sources[0].source.host_text(), its);
      EXPECT_EQ(sources[0].count(Cause::forged_header),
                c.lane(r).monitor().count(Cause::forged_header));
    }
  }
}

// A datagram that only arrives in another order, because of the network or of an attacker who
// delays it, is authentic: it is accepted and not counted as a forgery.
TEST_P(Attacks, AnotherOrderIsNoForgery) {
  Cluster c(options());
  Rng rng(5);
  c.net().set_datagram_hook([&](size_t from, size_t to, ConstBytes d) {
    if (from == to || rng.chance(0.5)) return SimNetwork::Verdict::kPass;
    const auto later = static_cast<Nanos>(rng.below(3 * kMilli));
    c.at(c.now() + later,
         [&c, from, to, held = Captured(d.begin(), d.end())] { c.net().inject(to, held, from); });
    return SimNetwork::Verdict::kDrop;
  });
  run_exactly(c);
  for (const Cause cause : {Cause::forged, Cause::forged_header, Cause::foreign, Cause::malformed,
                            Cause::source_moved}) {
    EXPECT_EQ(refused(c, cause), 0u) << cause_name(cause);
  }
}

// Everything is sent back to its sender, and once more to its receivers, from a host that is not a
// member. It changes nothing, and the host is reported.
TEST_P(Attacks, ReflectedDatagramsChangeNothing) {
  ClusterOptions o = options();
  o.accounts = [](Member) {
    LaneAccounts accounts;
    accounts.watch = true;
    return accounts;
  };
  Cluster c(o);
  const auto stranger = c.net().attach();
  const std::string its = c.net().source_of(stranger->index()).host_text();
  size_t reflected = 0, later = 0;
  c.net().set_datagram_hook([&](size_t from, size_t to, ConstBytes d) {
    if (to == 0) {
      reflected++;
      c.net().inject(from, d, stranger->index());
    }
    if (from == to || later++ % 10 != 0) return SimNetwork::Verdict::kPass;
    c.at(c.now() + 30 * kMilli, [&c, to, again = Captured(d.begin(), d.end()), &stranger] {
      c.net().inject(to, again, stranger->index());
    });
    return SimNetwork::Verdict::kPass;
  });
  run_exactly(c);
  c.run_for(50 * kMilli);
  EXPECT_GT(reflected, 1000u);
  // Repeated positions and probes are counted under their own cause.
  EXPECT_GE(refused(c, Cause::source_moved) + refused(c, Cause::replayed), reflected);
  EXPECT_GE(refused(c, Cause::source_moved), reflected);
  for (Member r = 0; r < c.size(); r++) {
    const auto sources = c.lane(r).monitor().top(10);
    ASSERT_EQ(sources.size(), 1u) << r;
    EXPECT_EQ(sources[0].source.host_text(), its);
    EXPECT_EQ(sources[0].count(Cause::source_moved),
              c.lane(r).monitor().count(Cause::source_moved));
  }
}

// Attack 5: a complete datagram of version 1 from a stranger who knows the tag.
TEST_P(Attacks, ADatagramOfVersion1EndsNoJob) {
  Cluster c(options());
  const GroupParams& params = c.group(0).core().params();
  before_each(c, [&](size_t to, Captured) {
    wire::DatagramHeader h;
    h.type = wire::DatagramType::kAbort;
    h.group_tag = params.tag;
    h.lane = params.lane;
    h.member = static_cast<Member>(1 - to % 2);
    wire::Writer notice;
    wire::put_abort(notice, {static_cast<uint8_t>(Code::kAborted), 1, 1, 0, "the end"});
    Captured d(wire::kDatagramHeader + notice.size());
    wire::write_datagram(d, h, notice.bytes());
    c.net().inject(to, d);
  });
  run_exactly(c);
  EXPECT_GT(refused(c, Cause::downgraded), 1000u);
}

// The same in version 2, complete except for the keys, which are those of another secret.
TEST_P(Attacks, AnAbortWithOtherKeysEndsNoJob) {
  Cluster c(options());
  const GroupParams& params = c.group(0).core().params();
  auto key = crypto::SealKey::make(crypto::root_key(Captured(32)),
                                   {GetParam(), crypto::Suite::kAes128Gcm, params.lane}, 1, {});
  ASSERT_TRUE(key.ok());
  before_each(c, [&](size_t to, Captured) {
    wire::DatagramHeader h;
    h.type = wire::DatagramType::kAbort;
    h.group_tag = params.tag;
    h.lane = params.lane;
    h.member = 1;
    wire::Writer notice;
    wire::put_abort(notice, {static_cast<uint8_t>(Code::kAborted), 1, 1, 0, "the end"});
    Captured d(notice.size() + wire::kGuardedHeader + wire::kDatagramTag);
    key->seal(d, h, notice.bytes());
    c.net().inject(to, d);
  });
  run_exactly(c);
  EXPECT_GT(refused(c, Cause::forged_header), 1000u);
}

// If the members use up all epochs, the error on every rank names this reason.
TEST_P(Attacks, TheEndOfAllEpochsIsNamed) {
  ClusterOptions o = options(3);
  o.epochs.packets = 20;
  o.epochs.epochs = 4;
  Cluster c(o);
  Runs runs;
  for (Member m = 0; m < 3; m++) runs.push_back(c.broadcast(m, 0, 1 << 20, 1));
  ASSERT_TRUE(c.run([&] { return all_done(runs); }));
  bool named = false;
  for (const auto& run : runs) {
    EXPECT_FALSE(run->status.ok());
    named = named || run->status.message().find("all 4 epochs of this rank's keys are used up") !=
                         std::string::npos;
  }
  EXPECT_TRUE(named);
}

// Endless forgeries cost a bounded share of work, and no memory.
TEST_P(Attacks, ASiegeWithTrueHeadersStaysWithinTheBudget) {
  ClusterOptions o = options();
  o.budget.bytes = 8 << 10;
  Cluster c(o);
  before_each(c, [&](size_t to, Captured d) {
    d.back() ^= std::byte{1};
    for (int i = 0; i < 20; i++) c.net().inject(to, d);
  });
  run_exactly(c);
  EXPECT_GT(refused(c, Cause::forged), 0u);
  uint64_t offered = 0;
  for (Member r = 0; r < c.size(); r++)
    offered += c.group(r).counters().get(Counter::datagrams_received);
  EXPECT_LT(refused(c, Cause::forged) * 4, offered) << "most were not even tried";
}

}  // namespace
}  // namespace mcast::test
