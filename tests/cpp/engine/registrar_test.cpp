// The registrar against aggregators that answer, refuse, hang, talk nonsense, go and come back:
// what it offers to the group, what it tells of each, and what it leaves behind.
#include "engine/registrar_thread.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <condition_variable>
#include <deque>
#include <functional>

#include "base/descriptors.h"
#include "base/log.h"
#include "crypto/handshake.h"
#include "crypto/signed_text.h"
#include "engine/aggregator_stub.h"
#include "engine/clock.h"
#include "support/until.h"

namespace mcast::test {
namespace {

constexpr uint64_t kGroup = 42;

// A group's side: the offers that came, in order.
class Offers {
 public:
  Registrar::Job job(const std::vector<NetAddress>& aggregators) {
    Registrar::Job job;
    job.aggregators = aggregators;
    job.ask.version = "1.2.3";
    job.ask.protocol = 6;
    job.ask.transport = "udp";
    job.ask.tag = kGroup;
    job.ask.name = "grads";
    job.ask.uids = {1, 2, 3};
    job.ask.host_of = {0, 1, 2};
    job.ask.chunk = 1408;
    job.ask.incast = 2 << 20;
    job.ask.fold = "rank";
    job.ask.aggregate = "careful";
    job.offer = [this](std::vector<wire::StationEntry> stations) {
      const std::lock_guard<std::mutex> held(mutex_);
      offers_.push_back(std::move(stations));
      came_.notify_all();
    };
    return job;
  }
  // Uids of the next offer; nothing: none came for `patience`.
  std::optional<std::vector<uint64_t>> next(Nanos patience = 5 * kSecond) {
    std::unique_lock<std::mutex> held(mutex_);
    if (!came_.wait_for(held, std::chrono::nanoseconds(patience),
                        [this] { return !offers_.empty(); })) {
      return std::nullopt;
    }
    std::vector<uint64_t> uids;
    for (const wire::StationEntry& s : offers_.front()) uids.push_back(s.uid);
    offers_.pop_front();
    return uids;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::vector<wire::StationEntry>> offers_;
};

using Uids = std::vector<uint64_t>;

std::string state(const Registrar& registrar, size_t aggregator = 0) {
  return registrar.stats(kGroup).at(aggregator).state;
}
std::string reason(const Registrar& registrar, size_t aggregator = 0) {
  return registrar.stats(kGroup).at(aggregator).reason;
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class RegistrarTest : public testing::Test {
 protected:
  RegistrarTest() { set_log_level(LogLevel::kError); }
  ~RegistrarTest() override { set_log_level(LogLevel::kWarn); }
  // After the offers and the aggregators, whose connections it closes.
  Offers offers;
  AggregatorStub a, b;
  RegistrarThread registrar;
};

// A guarded group, and what an aggregator of its secret's role has.
class GuardedRegistrar : public RegistrarTest {
 protected:
  GuardedRegistrar() {
    const std::vector<std::byte> secret(32, std::byte{3});
    job_ = offers.job({a.address()});
    job_.secret = crypto::JobSecret::make(secret, "a test").value();
    job_.ask.security = "sealed";
    for (int r = 0; r < 3; r++) job_.ask.keys.emplace_back().fill(std::byte{9});
    const crypto::Key root = crypto::root_key(secret);
    const crypto::Key role = crypto::role_key(root, static_cast<uint8_t>(crypto::Role::kAggregator),
                                              crypto::kAggregatorName);
    role_ = crypto::JobSecret::make(role.bytes(), "its role").value();
  }
  // The answer to an ask.
  std::string signed_by(const crypto::Key& key, wire::Accept accept, const std::string& asked,
                        const std::string& nonce = "n1") {
    for (auto& station : accept.stations) station.key.fill(std::byte{5});
    const std::string about = crypto::digest_text(asked);
    return wire::framed(
        crypto::with_mac(key, crypto::said_over(nonce, "accept", about), wire::encode(accept)));
  }
  Registrar::Job job_;
  std::shared_ptr<const crypto::JobSecret> role_;
};

TEST_F(GuardedRegistrar, ProvesItselfAndBelievesAProof) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto link = a.take();
  ASSERT_TRUE(link);
  EXPECT_FALSE(link->read(100 * kMilli)) << "nothing is said before the challenge";
  link->send(wire::Challenge{"sealed", "n1"});
  const auto asked = link->read_text();
  ASSERT_TRUE(asked);
  const crypto::RecordPlace place{"n1", "ask", "", 0, 0};
  EXPECT_TRUE(crypto::without_mac(role_->record(), place, *asked));
  EXPECT_FALSE(crypto::without_mac(role_->record(), {"n2", "ask", "", 0, 0}, *asked));
  link->raw(signed_by(role_->record(), admits({10}), *asked));
  EXPECT_EQ(offers.next(), (Uids{10}));
}

TEST_F(GuardedRegistrar, WhoHasNoProofIsNotUsed) {
  const wire::Accept accept = admits({10});
  using Answer = std::function<std::string(const std::string& asked)>;
  const Answer answers[] = {
      [&](const std::string&) { return wire::framed(wire::encode(accept)); },
      [&](const std::string& asked) { return signed_by(job_.secret->record(), accept, asked); },
      // The right one, to what another group has asked.
      [&](const std::string& asked) { return signed_by(role_->record(), accept, asked + "\n"); },
  };
  for (const Answer& answer : answers) {
    ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
    const auto link = a.take();
    ASSERT_TRUE(link);
    link->send(wire::Challenge{"sealed", "n1"});
    const auto asked = link->read_text();
    ASSERT_TRUE(asked);
    link->raw(answer(*asked));
    EXPECT_TRUE(until([&] { return contains(reason(registrar), "its proof is wrong"); },
                      "the wrong proof to be reported"))
        << reason(registrar);
    registrar.leave(kGroup);
    ASSERT_TRUE(until([&] { return registrar.stats(kGroup).empty(); }, "the job to leave"));
  }
}

TEST_F(GuardedRegistrar, BeforeTheChallengeNothingIsSaidOrBelieved) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto early = a.take();
  ASSERT_TRUE(early);
  early->raw(signed_by(role_->record(), admits({10}), "", ""));
  EXPECT_TRUE(until([&] { return contains(reason(registrar), "its proof is wrong"); },
                    "the wrong proof to be reported"))
      << reason(registrar);
  Registrar::Job other = offers.job({b.address()});
  other.secret = job_.secret;
  other.ask = job_.ask;
  ASSERT_TRUE(registrar.enter(kGroup + 1, other).ok());
  const auto link = b.take();
  ASSERT_TRUE(link);
  registrar.leave(kGroup + 1);
  EXPECT_FALSE(link->read()) << "a goodbye to who has not asked would be nonsense to it";
}

TEST_F(GuardedRegistrar, AnotherSecurityIsNamed) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto other = a.take();
  other->send(wire::Challenge{"auth", "n1"});
  const auto asked = other->read();
  ASSERT_TRUE(asked && std::holds_alternative<wire::Ask>(*asked)) << "so the aggregator names it";
  EXPECT_EQ(std::get<wire::Ask>(*asked).security, "sealed");
  EXPECT_FALSE(other->read()) << "no more is said";
  EXPECT_TRUE(until(
      [&] {
        return contains(reason(registrar),
                        "runs with security=auth, the group with security=sealed");
      },
      "the reason to be reported"))
      << reason(registrar);
  registrar.leave(kGroup);
  ASSERT_TRUE(registrar.enter(kGroup + 1, offers.job({b.address()})).ok());
  const auto link = b.take();
  link->send(wire::Challenge{"auth", "n1"});
  EXPECT_TRUE(until(
      [&] {
        return contains(registrar.stats(kGroup + 1)[0].reason, "the group with security=off");
      },
      "the reason to be reported"));
}

TEST_F(GuardedRegistrar, WhoAsksForNoProofIsNamed) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto link = a.take();
  EXPECT_TRUE(until([&] { return contains(reason(registrar), "is its security off?"); },
                    "the mode to be asked for"))
      << reason(registrar);
}

TEST_F(RegistrarTest, AsksOffersAndSaysGoodbye) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address(), b.address()})).ok());
  const auto at_a = a.take(), at_b = b.take();
  ASSERT_TRUE(at_a && at_b);
  const auto asked = at_a->read();
  ASSERT_TRUE(asked && std::holds_alternative<wire::Ask>(*asked));
  const auto& ask = std::get<wire::Ask>(*asked);
  EXPECT_EQ(ask.name, "grads");
  EXPECT_EQ(ask.uids, (Uids{1, 2, 3}));
  EXPECT_EQ(ask.roster, 1u);
  at_b->send(admits({20}));
  EXPECT_FALSE(offers.next(200 * kMilli));  // the other one may answer yet
  EXPECT_EQ(state(registrar, 0), "asking");
  at_a->send(admits({10, 11}));
  EXPECT_EQ(offers.next(), (Uids{10, 11, 20}));
  const std::vector<AggregatorStats> stats = registrar.stats(kGroup);
  EXPECT_EQ(stats[0].address, a.address().text());
  EXPECT_EQ(stats[0].state, "admitted");
  EXPECT_EQ(stats[0].stations, 2u);
  EXPECT_EQ(stats[0].capacity, 1.0);
  EXPECT_EQ(stats[1].capacity, 0.5);
  registrar.leave(kGroup);
  EXPECT_TRUE(at_a->says_goodbye());
  ASSERT_TRUE(at_b->read() && at_b->says_goodbye());
  EXPECT_TRUE(registrar.stats(kGroup).empty());
}

TEST_F(RegistrarTest, OneThatRefusesIsNamedAndAskedAgain) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address()})).ok());
  auto at_a = a.take();
  ASSERT_TRUE(at_a && at_a->read());
  at_a->send(wire::Refuse{"quota", "quota 512M, 498M in use"});
  EXPECT_EQ(offers.next(), Uids{});
  EXPECT_EQ(state(registrar), "refused");
  EXPECT_EQ(reason(registrar), "quota: quota 512M, 498M in use");
  const Nanos refused = monotonic_now();
  at_a = a.take();
  ASSERT_TRUE(at_a && at_a->read());
  EXPECT_GT(monotonic_now() - refused, Admission::kFirstWait / 2);
  at_a->send(admits({10}));
  EXPECT_EQ(offers.next(), Uids{10});
  EXPECT_EQ(reason(registrar), "");
}

TEST_F(RegistrarTest, OneThatHangsHoldsUpNobody) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address(), b.address()})).ok());
  const auto at_a = a.take(), at_b = b.take();
  ASSERT_TRUE(at_a && at_b);
  at_b->send(admits({20}));
  EXPECT_EQ(offers.next(), Uids{20}) << "offered before the other one has answered";
  ASSERT_TRUE(until([&] { return state(registrar) == "unreachable"; },
                    "the hung aggregator to be given up"));
  EXPECT_EQ(reason(registrar), "no answer for 2.0 s");
  const auto again = a.take();
  ASSERT_TRUE(again);
  again->send(admits({10}));
  EXPECT_EQ(offers.next(), (Uids{10, 20}));
}

// Where the hosts "late..." are is known when the test says so; meanwhile the others are served.
class LateNames {
 public:
  NameLookup::Resolve resolver() {
    return [this](const NetAddress& address) {
      NetAddress real = address;
      if (address.host.rfind("late", 0) == 0) {
        std::unique_lock<std::mutex> held(mutex_);
        asked_++;
        told_.wait(held, [this] { return answers_ > 0; });
        answers_--;
        real.host = "127.0.0.1";
      }
      return resolve(real);
    };
  }
  // So that a registrar made before it can end, whatever has failed.
  struct AnswersInTheEnd {
    LateNames& names;
    ~AnswersInTheEnd() { names.answer(100); }
  };
  void answer(int times = 1) {
    const std::lock_guard<std::mutex> held(mutex_);
    answers_ += times;
    told_.notify_all();
  }
  int asked() {
    const std::lock_guard<std::mutex> held(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  int answers_ = 0, asked_ = 0;
};

TEST_F(RegistrarTest, ANameServerThatHangsHoldsUpNobody) {
  LateNames names;
  RegistrarThread one(names.resolver());
  const LateNames::AnswersInTheEnd in_the_end{names};
  const NetAddress late{"late.example", a.address().port}, later{"late.too", a.address().port};
  ASSERT_TRUE(one.enter(kGroup, offers.job({late, later, b.address()})).ok());
  auto at_b = b.take();
  ASSERT_TRUE(at_b && at_b->read());
  at_b->send(admits({20}));
  EXPECT_EQ(offers.next(), Uids{20});
  EXPECT_EQ(state(one, 0), "asking");
  // What is lost meanwhile is asked again.
  one.lost(kGroup, 20, "rank 1 has lost it");
  EXPECT_EQ(offers.next(), Uids{});
  EXPECT_TRUE(at_b->says_goodbye());
  at_b = b.take();
  ASSERT_TRUE(at_b && at_b->read());
  at_b->send(admits({21}));
  EXPECT_EQ(offers.next(), Uids{21});
  EXPECT_EQ(names.asked(), 1) << "one at a time";
  names.answer(2);
  const auto first = a.take(), second = a.take();
  ASSERT_TRUE(first && second);
  first->send(admits({10}));
  second->send(admits({11}));
  std::optional<Uids> offer = offers.next();
  if (offer && offer->size() < 3) offer = offers.next();
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->size(), 3u);
  EXPECT_EQ(offer->back(), 21u);
  EXPECT_EQ(names.asked(), 2);
}

TEST_F(RegistrarTest, AGroupThatLeavesWhileItsNamesAreLookedUp) {
  LateNames names;
  RegistrarThread one(names.resolver());
  const LateNames::AnswersInTheEnd in_the_end{names};
  const NetAddress late{"late.example", a.address().port};
  ASSERT_TRUE(one.enter(kGroup, offers.job({late})).ok());
  ASSERT_TRUE(until([&] { return names.asked() == 1; }, "a name lookup"));
  one.leave(kGroup);
  ASSERT_TRUE(until([&] { return one.stats(kGroup).empty(); }, "the job to leave"));
  names.answer();
  ASSERT_TRUE(one.enter(kGroup, offers.job({late})).ok());
  const auto at_a = a.take();
  ASSERT_TRUE(at_a);
  at_a->send(admits({10}));
  EXPECT_EQ(offers.next(), Uids{10});
}

TEST_F(RegistrarTest, NonsenseAndWrongPlacesEndAConnection) {
  const std::pair<std::string, const char*> said[] = {
      {"HTTP/1.1 400 Bad Request\r\n\r\n", "is no record of an aggregator"},
      {wire::framed("record=hello\n"), "\"record\" is missing or out of range"},
      {wire::framed(wire::encode(wire::Draining{})), "a record that has no place here"},
      {wire::framed(wire::encode(admits({2}))), "a station that cannot be"},  // a rank's uid
      {wire::framed(wire::encode(admits({10, 10}))), "a station that cannot be"},
      {wire::framed(wire::encode(admits({10}))).substr(0, 9), "has closed the connection"},
      {"", "has closed the connection"},
  };
  for (const auto& [bytes, why] : said) {
    RegistrarThread one;
    ASSERT_TRUE(one.enter(kGroup, offers.job({a.address()})).ok());
    {
      const auto at_a = a.take();
      ASSERT_TRUE(at_a && at_a->read());
      at_a->raw(bytes);
    }
    EXPECT_EQ(offers.next(), Uids{}) << why;
    EXPECT_EQ(state(one), "unreachable");
    EXPECT_TRUE(contains(reason(one), why)) << reason(one);
  }
}

TEST_F(RegistrarTest, WhereNobodyListensOrNobodyIsKnown) {
  NetAddress nobody;
  {
    AggregatorStub gone;
    nobody = gone.address();
  }
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({nobody, {"no-such-host.invalid", 7117}})).ok());
  EXPECT_EQ(offers.next(30 * kSecond), Uids{});
  ASSERT_TRUE(
      until([&] { return state(registrar, 1) == "unreachable"; }, "the aggregator to be given up"));
  EXPECT_TRUE(contains(reason(registrar, 0), "Connection refused")) << reason(registrar, 0);
  EXPECT_TRUE(contains(reason(registrar, 1), "the host no-such-host.invalid is not known"));
  AggregatorStub there(nobody.port);
  const auto asker = there.take(10 * kSecond);
  ASSERT_TRUE(asker);
  asker->send(admits({30}));
  EXPECT_EQ(offers.next(), Uids{30});
}

// A rank has lost a station: nothing of the aggregator is offered any more; it is told, and asked
// again; a new process has other uids.
TEST_F(RegistrarTest, OneThatIsLostIsAskedAfterASecond) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address(), b.address()})).ok());
  const auto at_a = a.take(), at_b = b.take();
  ASSERT_TRUE(at_a && at_a->read() && at_b);
  at_a->send(admits({10, 11}));
  at_b->send(admits({20}));
  EXPECT_EQ(offers.next(), (Uids{10, 11, 20}));
  registrar.settled(kGroup, {10, 11, 20});
  const Nanos lost = monotonic_now();
  registrar.lost(kGroup, 11, "rank 2 has lost the station at 10.0.0.9:11: reset");
  registrar.lost(kGroup, 99, "nobody's");
  EXPECT_EQ(offers.next(), Uids{20});
  EXPECT_EQ(state(registrar), "lost");
  EXPECT_EQ(reason(registrar), "rank 2 has lost the station at 10.0.0.9:11: reset");
  EXPECT_TRUE(at_a->says_goodbye());
  const auto again = a.take();
  ASSERT_TRUE(again);
  EXPECT_GE(monotonic_now() - lost, Admission::kWaitAfterLoss - 5 * kMilli);
  const auto asked = again->read();
  ASSERT_TRUE(asked);
  EXPECT_EQ(std::get<wire::Ask>(*asked).roster, 3u);
  again->send(admits({12}));
  EXPECT_EQ(offers.next(), (Uids{12, 20}));
  registrar.lost(kGroup, 11, "old news");
  EXPECT_FALSE(offers.next(100 * kMilli));
}

// The connection alone says nothing of the stations: ranks would notice.
TEST_F(RegistrarTest, AConnectionThatEndsTakesNoStation) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address()})).ok());
  {
    const auto at_a = a.take();
    ASSERT_TRUE(at_a);
    at_a->send(admits({10}));
    EXPECT_EQ(offers.next(), Uids{10});
  }
  ASSERT_TRUE(until([&] { return contains(reason(registrar), "its stations go on"); },
                    "its stations to go on"));
  EXPECT_EQ(state(registrar), "admitted");
  EXPECT_FALSE(offers.next(100 * kMilli));
}

TEST_F(RegistrarTest, OneThatDrainsIsLeftWhenNoRankSpeaksToIt) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address()})).ok());
  const auto at_a = a.take();
  ASSERT_TRUE(at_a && at_a->read());
  at_a->send(admits({10, 11}));
  EXPECT_EQ(offers.next(), (Uids{10, 11}));
  at_a->send(wire::Draining{});
  EXPECT_EQ(offers.next(), Uids{});
  EXPECT_EQ(state(registrar), "draining");
  registrar.parted(kGroup, 10);
  EXPECT_FALSE(at_a->read(100 * kMilli));
  registrar.parted(kGroup, 11);
  EXPECT_TRUE(at_a->says_goodbye());
  EXPECT_TRUE(a.take());  // for when it is there again
}

TEST_F(RegistrarTest, GroupsAreApartAndTheEndLeavesNothing) {
  const uint64_t before = descriptor_use().open;
  for (int round = 0; round < 20; round++) {
    RegistrarThread one;
    Offers others;
    ASSERT_TRUE(one.enter(kGroup, offers.job({a.address()})).ok());
    ASSERT_TRUE(one.enter(kGroup + 1, others.job({a.address()})).ok());
    const auto first = a.take(), second = a.take();
    ASSERT_TRUE(first && second && first->read() && second->read());
    first->send(admits({10}));
    second->send(admits({10}));  // uids count within a group
    EXPECT_EQ(offers.next(), Uids{10});
    EXPECT_EQ(others.next(), Uids{10});
    one.lost(kGroup + 1, 10, "rank 0 has lost it");
    EXPECT_EQ(others.next(), Uids{});
    EXPECT_FALSE(offers.next(kMilli));
    if (round % 2 == 0) one.stop();
  }
  ASSERT_TRUE(until([&] { return descriptor_use().open == before; }, "descriptors to be closed"));
  RegistrarThread unused;
  unused.stop();
}

// The child has no thread, and none of the connections.
TEST_F(RegistrarTest, AForkedChildHoldsNoConnection) {
  ASSERT_TRUE(registrar.enter(kGroup, offers.job({a.address()})).ok());
  auto at_a = a.take();
  ASSERT_TRUE(at_a && at_a->read());
  at_a->send(admits({10}));
  EXPECT_EQ(offers.next(), Uids{10});
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  registrar.lock();
  const pid_t child = ::fork();
  if (child == 0) {
    registrar.abandon_after_fork();
    registrar.unlock();
    char byte = 0;
    ::alarm(20);
    ::close(hold[1]);
    ::_exit(::read(hold[0], &byte, 1) == 0 ? 0 : 1);
  }
  registrar.unlock();
  registrar.stop();
  EXPECT_TRUE(at_a->says_goodbye());
  EXPECT_FALSE(at_a->read(2 * kSecond));  // the end: nobody else holds the connection
  ::close(hold[1]);
  ::close(hold[0]);
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mcast::test
