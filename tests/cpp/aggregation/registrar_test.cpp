// The registrar against aggregators that admit, refuse, hang, send invalid replies, go and return:
// its offers to the group, its report about each aggregator, and what remains afterwards.
#include <sys/wait.h>

#include "aggregation/registrar_world.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "support/until.h"

namespace mcast::test {
namespace {

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
  EXPECT_FALSE(offers.next(200 * kMilli));  // the other one may still reply
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

// The names of the hosts "late..." resolve when the test allows it; the other aggregators are
// served meanwhile.
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
  // Resolves the names at the end, so that a registrar made before it can end even if the test has
  // failed.
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
  // A loss reported meanwhile leads to another request.
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
      {"HTTP/1.1 400 Bad Request\r\n\r\n", "is not a record of an aggregator"},
      {wire::framed("record=hello\n"), "\"record\" is missing or out of range"},
      {wire::framed(wire::encode(wire::Draining{})), "a record that is not expected here"},
      {wire::framed(wire::encode(admits({2}))), "an impossible station"},  // the uid of a rank
      {wire::framed(wire::encode(admits({10, 10}))), "an impossible station"},
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

TEST_F(RegistrarTest, MissingListenerOrUnknownHostIsUnreachable) {
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

// A rank has lost a station. No station of the aggregator is offered any more; it is notified and
// asked again; a new process has other uids.
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

// The end of the connection alone says nothing about the stations: ranks would notice their end.
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
  EXPECT_TRUE(a.take());  // for its return
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

// The child has no thread of it, and no connection.
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
  EXPECT_FALSE(at_a->read(2 * kSecond));  // its end: no other process holds the connection
  ::close(hold[1]);
  ::close(hold[0]);
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mcast::test
