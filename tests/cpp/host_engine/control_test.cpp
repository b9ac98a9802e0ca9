// Messages on the control socket: each kind is read as it was written, and refused if a required
// field is missing or invalid.
#include "host_engine/ipc/control.h"

#include <gtest/gtest.h>

#include <random>

#include "support/seeds.h"
#include "wire/bytes.h"

namespace mcast::ipc {
namespace {

// Sends the message over the socket, as bytes.
Control sent(const Control& message) {
  const auto bytes = bytes_of(message);
  EXPECT_FALSE(bytes.empty());
  const auto read = parse_control(bytes);
  EXPECT_TRUE(read);
  return read.value_or(Control{});
}

TEST(IpcControl, EachKindIsReadAsItWasWritten) {
  Hello hello, hello_read;
  hello.product = "0.9+abc";
  ASSERT_TRUE(read(sent(control_of(hello)), hello_read));
  EXPECT_EQ(bytes_of(control_of(hello_read)), bytes_of(control_of(hello)));

  Welcome welcome{3 * kSecond, "auth,sealed", "5f1c02aa", "chunk,mtu"}, welcome_read;
  ASSERT_TRUE(read(sent(control_of(welcome)), welcome_read));
  EXPECT_EQ(welcome_read.security, "auth,sealed");
  EXPECT_EQ(welcome_read.secret_check, "5f1c02aa");
  EXPECT_EQ(welcome_read.settings, "chunk,mtu");
  EXPECT_EQ(bytes_of(control_of(welcome_read)), bytes_of(control_of(welcome)));

  Verdict verdict;
  const Status lost(Code::kPeerLost, "rank 3\nis lost");
  ASSERT_TRUE(read(sent(control_of(ControlType::kClosed, 5, Verdict::of(lost))), verdict));
  EXPECT_EQ(verdict.status().to_string(), lost.to_string());
  ASSERT_TRUE(read(sent(control_of(ControlType::kClosed, 5, Verdict::of(Status()))), verdict));
  EXPECT_TRUE(verdict.status().ok());

  GroupAsk ask{"default",  2,         4, kSecond, {{"mtu", "9000"}, {"faults", "drop:rate=0.1\nx"}},
               "mcast/3/", "cpu=gloo"},
      ask_read;
  const Control asked = sent(control_of(9, ask));
  EXPECT_EQ(asked.call, 9u);
  ASSERT_TRUE(read(asked, ask_read));
  EXPECT_EQ(ask_read.settings, ask.settings);
  EXPECT_EQ(ask_read.scope, ask.scope);
  EXPECT_EQ(ask_read.fallback, ask.fallback);
  EXPECT_FALSE(ask_read.claims) << "as of a client that does not know StoreClaim";
  ask.claims = true;
  ASSERT_TRUE(read(sent(control_of(9, ask)), ask_read));
  EXPECT_TRUE(ask_read.claims);
  EXPECT_EQ(bytes_of(control_of(9, ask_read)), bytes_of(control_of(9, ask)));
}

// As of a group whose time limit has passed between two questions to the store.
TEST(IpcControl, ATimeThatIsOverIsReadAsZero) {
  StoreGet get;
  ASSERT_TRUE(read(sent(control_of(3, StoreGet{-5, {"key"}})), get));
  EXPECT_EQ(get.timeout, 0);
  EXPECT_EQ(get.keys, std::vector<std::string>{"key"});
  GroupAsk ask;
  ASSERT_TRUE(read(sent(control_of(3, GroupAsk{"g", 0, 1, -5, {}, "", ""})), ask));
  EXPECT_EQ(ask.timeout, 0);
}

// An engine without the newer fields guards nothing.
TEST(IpcControl, AnOlderWelcomeServesNoGuardedGroup) {
  Welcome welcome{kSecond, "sealed", "5f1c02aa", "mtu"};
  ASSERT_TRUE(read(Control{ControlType::kWelcome, 0, {"silence=7\n"}}, welcome));
  EXPECT_EQ(welcome.security, "off");
  EXPECT_EQ(welcome.secret_check, "");
  EXPECT_EQ(welcome.settings, "");
}

TEST(IpcControl, ValuesMayHoldAnyBytes) {
  StoreSet set;
  const std::string any("a\0b\n=", 5);
  ASSERT_TRUE(read(sent(control_of(1, StoreSet{"key", any})), set));
  EXPECT_EQ(set.value, any);

  StoreClaim claim;
  ASSERT_TRUE(read(sent(control_of(1, StoreClaim{"port/1/20000", any})), claim));
  EXPECT_EQ(claim.key, "port/1/20000");
  EXPECT_EQ(claim.owner, any);

  StoreGet get;
  ASSERT_TRUE(read(sent(control_of(1, StoreGet{kMilli, {"a", "b", ""}})), get));
  EXPECT_EQ(get.keys, (std::vector<std::string>{"a", "b", ""}));
  EXPECT_EQ(get.timeout, kMilli);

  StoreAnswer answer;
  ASSERT_TRUE(read(sent(control_of(1, StoreAnswer{{Code::kOk, ""}, {any, ""}})), answer));
  EXPECT_EQ(answer.values, (std::vector<std::string>{any, ""}));

  GroupMade made;
  ASSERT_TRUE(read(sent(control_of(1, GroupMade{7, 1000, true, any})), made));
  EXPECT_EQ(made.handle, 7u);
  EXPECT_EQ(made.longest, 1000u);
  EXPECT_TRUE(made.messages);
  EXPECT_EQ(made.stats, any);

  Close close;
  ASSERT_TRUE(read(sent(control_of(1, Close{7, kSecond, true})), close));
  EXPECT_TRUE(close.force && close.handle == 7 && close.limit == kSecond);

  Abort abort;
  ASSERT_TRUE(read(sent(control_of(Abort{7, any})), abort));
  EXPECT_EQ(abort.reason, any);

  Arena arena;
  for (const ControlType type : {ControlType::kDrain, ControlType::kDraining}) {
    Draining draining;
    ASSERT_TRUE(read(sent(control_of(type, 3, Draining{600 * kSecond})), draining));
    EXPECT_EQ(draining.limit, 600 * kSecond);
  }

  MemoryOffer memory;
  ASSERT_TRUE(read(sent(control_of(4, MemoryOffer{UINT64_MAX, {1, 2}})), memory));
  EXPECT_EQ(memory.address, UINT64_MAX);
  EXPECT_EQ(memory.cookie, (std::array<uint64_t, 2>{1, 2}));
  for (const AccessMethod method : {AccessMethod::kVm, AccessMethod::kDescriptor}) {
    Memory found;
    ASSERT_TRUE(read(sent(control_of(4, Memory{method})), found));
    EXPECT_EQ(found.method, method);
  }
  ASSERT_TRUE(read(sent(control_of(ControlType::kArena, 1, Arena{17, 1u << 30})), arena));
  EXPECT_TRUE(arena.space == 17 && arena.bytes == 1u << 30);
}

TEST(IpcControl, InvalidMessagesAreRefused) {
  const auto hello = [](const std::string& text) {
    Hello m;
    return read(Control{ControlType::kHello, 0, {text}}, m);
  };
  const std::string good = control_of(Hello{}).parts[0];
  EXPECT_TRUE(hello(good));
  EXPECT_TRUE(hello(good + "later=1\n")) << "a later version says more";
  EXPECT_FALSE(hello("oldest=1\n"));
  EXPECT_FALSE(hello(good + "newest=0\n")) << "from 1 to 0";
  EXPECT_FALSE(hello(good + "oldest=-1\n"));

  GroupAsk ask;
  EXPECT_FALSE(read(control_of(1, GroupAsk{"g", 4, 4, 0, {}}), ask)) << "rank 4 of 4";
  EXPECT_FALSE(read(control_of(1, GroupAsk{"g", 0, 0, 0, {}}), ask));
  EXPECT_FALSE(read(control_of(1, GroupAsk{"g", 0, 65535, 0, {}}), ask));
  Control twice = control_of(1, GroupAsk{"g", 0, 2, 0, {{"mtu", "1"}}});
  twice.parts.insert(twice.parts.end(), {"mtu", "2"});
  EXPECT_FALSE(read(twice, ask)) << "a setting twice";
  twice.parts.pop_back();
  EXPECT_FALSE(read(twice, ask)) << "a setting without a value";

  Verdict verdict;
  EXPECT_FALSE(read(Control{ControlType::kClosed, 1, {"code=99\n", ""}}, verdict));
  EXPECT_FALSE(read(Control{ControlType::kClosed, 1, {"code=0\n", "but"}}, verdict));
  Close close;
  EXPECT_FALSE(read(Control{ControlType::kClose, 1, {"handle=1\nlimit=-5\nforce=0\n"}}, close));
  EXPECT_FALSE(read(Control{ControlType::kClose, 1, {"handle=1\nlimit=5\nforce=2\n"}}, close));
  Draining draining;
  EXPECT_FALSE(read(Control{ControlType::kDraining, 0, {"limit=-1\n"}}, draining));
  EXPECT_FALSE(read(Control{ControlType::kDraining, 0, {}}, draining));
  Memory found;
  EXPECT_FALSE(read(Control{ControlType::kMemory, 0, {"road=3\n"}}, found));
  MemoryOffer memory;
  EXPECT_FALSE(read(Control{ControlType::kMemoryOffer, 0, {"address=1\nfirst=2\n"}}, memory));
  StoreAnswer answer;
  EXPECT_FALSE(read(Control{ControlType::kStoreAnswer, 1, {"code=2\n", "no", "value"}}, answer));
  EXPECT_FALSE(read(Control{ControlType::kStoreAnswer, 1, {}}, answer));
  Hello none;
  EXPECT_FALSE(read(Control{ControlType::kHello, 0, {}}, none));
}

TEST(IpcControl, TooLongOnesAreNotSent) {
  EXPECT_TRUE(bytes_of(control_of(1, StoreSet{"k", std::string(kMostControl, 'x')})).empty());
  EXPECT_FALSE(bytes_of(control_of(1, StoreSet{"k", std::string(kMostControl - 30, 'x')})).empty());
}

// The largest number of parts that fits is sent, one more is not, and the reason is reported
// exactly in that case.
TEST(IpcControl, HowManyPartsFit) {
  const auto check = [](const Control& head, const std::vector<std::string>& parts, size_t fits) {
    EXPECT_EQ(fitting(head, parts), fits);
    for (const size_t count : {fits, fits + 1}) {
      if (count > parts.size()) continue;
      Control all = head;
      all.parts.insert(all.parts.end(), parts.begin(),
                       parts.begin() + static_cast<ptrdiff_t>(count));
      EXPECT_EQ(bytes_of(all).empty(), count > fits);
      EXPECT_EQ(too_long(all).empty(), count <= fits);
    }
  };
  const Control head{ControlType::kStoreAnswer, 1, {"1234", ""}};
  const size_t room = kMostControl - kControlHead - 2 * 4 - 4;
  check(head, std::vector<std::string>(100, std::string(2048, 'x')), room / 2052);
  check(head, std::vector<std::string>(5000), 4094);
  check(head, {std::string(room - 4, 'x'), ""}, 1);
  check(head, {std::string(room - 3, 'x'), ""}, 0);
  check(head, {}, 0);
  const std::string why = too_long(Control{ControlType::kStoreSet, 1, {std::string(70'000, 'x')}});
  EXPECT_NE(why.find("70020 bytes"), std::string::npos) << why;
  EXPECT_NE(why.find("65536 bytes"), std::string::npos) << why;
}

TEST(IpcControl, MutatedBytesThatParseHaveOneEncoding) {
  for (const uint64_t seed : test::seeds(400)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 rng(seed);
    auto bytes = bytes_of(control_of(1, GroupAsk{"g", 1, 2, kSecond, {{"mtu", "1500"}}}));
    for (int i = 0; i < 50; i++) {
      auto other = bytes;
      for (uint64_t k = rng() % 3 + 1; k > 0; k--) {
        other[rng() % other.size()] ^= std::byte(1 + rng() % 255);
      }
      if (rng() % 4 == 0) other.resize(rng() % (other.size() + 1));
      const auto message = parse_control(other);
      if (message) {
        EXPECT_EQ(bytes_of(*message), other);
      }
    }
  }
}

}  // namespace
}  // namespace mcast::ipc
