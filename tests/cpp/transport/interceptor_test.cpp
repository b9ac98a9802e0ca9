// Faults over a transport that returns everything that is sent: each action's effect, rates, seeds,
// counts and predicates.
#include "transport/interceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

namespace mcast {
namespace {

using Buffer = std::vector<std::byte>;
using ::testing::HasSubstr;

// Returns what is sent: datagrams by receive(), frames by poll().
class EchoTransport final : public Transport, private Datagram, private Stream {
 public:
  const char* name() const override { return "echo"; }
  Datagram& datagram() override { return *this; }
  Stream& stream() override { return *this; }
  void wait(Nanos timeout) override { waited = timeout; }
  void wake() noexcept override {}
  void abandon_after_fork() noexcept override {}
  std::string describe() const override { return "echo"; }

  Nanos waited = -1;
  size_t room = SIZE_MAX;  // datagrams that may be committed

 private:
  size_t max_datagram(const MulticastAddress&) const override { return 1000; }
  size_t receive_budget() const override { return 1 << 20; }
  Status join(const MulticastAddress&) override { return {}; }
  void leave(const MulticastAddress&) override {}
  Bytes lend(const MulticastAddress&, size_t size, Echo) override {
    if (datagrams_.size() >= room) return {};
    lent_.assign(size, std::byte{0});
    return lent_;
  }
  void commit(size_t size) override {
    lent_.resize(size);
    datagrams_.push_back(lent_);
  }
  bool flush() override { return true; }
  size_t receive(DatagramSink& sink, size_t max_bytes) override {
    size_t n = 0, bytes = 0;
    while (!datagrams_.empty() && bytes < max_bytes) {
      const Buffer d = datagrams_.front();
      datagrams_.pop_front();
      bytes += d.size();
      ++n;
      sink.on_datagram(d);
    }
    return n;
  }
  StreamAddress address(bool) const override { return {}; }
  PeerId add_peer(const StreamAddress&) override { return 0; }
  std::vector<PeerId> expect(std::span<const uint64_t> uids) override {
    return std::vector<PeerId>(uids.size());
  }
  void keep_trying(PeerId, Nanos) override {}
  void send(PeerId, Channel, std::span<const ConstBytes> parts) override {
    Buffer frame;
    for (const auto& p : parts) frame.insert(frame.end(), p.begin(), p.end());
    frames_.push_back(frame);
  }
  size_t queued(PeerId, Channel) const override { return 0; }
  size_t poll(StreamSink& sink, Nanos) override {
    size_t n = 0;
    for (; !frames_.empty(); ++n) {
      const Buffer f = frames_.front();
      frames_.pop_front();
      sink.on_frame(0, Channel::kRepair, f);
    }
    return n;
  }
  bool close_peers(Nanos) override { return frames_.empty(); }

  Buffer lent_;
  std::deque<Buffer> datagrams_, frames_;
};

// The first byte of a message is its type.
class ByLetter final : public FaultClassifier {
 public:
  bool knows(std::string_view predicate, std::string_view value) const override {
    return predicate == "type" && value.size() == 1;
  }
  bool matches(std::string_view, std::string_view value, ConstBytes message, bool) const override {
    return !message.empty() && static_cast<char>(message[0]) == value[0];
  }
  std::string grammar() const override { return "type=LETTER"; }
};

Buffer bytes(const std::string& text) {
  Buffer out(text.size());
  for (size_t i = 0; i < text.size(); ++i) out[i] = static_cast<std::byte>(text[i]);
  return out;
}

struct Rig : DatagramSink, StreamSink {
  explicit Rig(const std::string& spec) {
    auto inner = std::make_unique<EchoTransport>();
    echo = inner.get();
    auto made = intercept(std::move(inner), spec, &classifier);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    transport = std::move(made).value();
  }
  void on_datagram(ConstBytes d) override { datagrams.emplace_back(text(d)); }
  void on_frame(PeerId, Channel, ConstBytes f) override { frames.emplace_back(text(f)); }
  void on_peer_down(PeerId, const Status&, bool) override {}
  static std::string text(ConstBytes b) {
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }

  void put(const std::string& message) {
    const Buffer data = bytes(message);
    const Bytes lent = transport->datagram().lend({1, 1}, data.size());
    ASSERT_EQ(lent.size(), data.size());
    std::copy(data.begin(), data.end(), lent.begin());
    transport->datagram().commit(data.size());
  }
  void put_all(const std::string& letters) {
    for (char c : letters) put(std::string(1, c));
  }
  void frame(const std::string& message) {
    const Buffer data = bytes(message);
    const ConstBytes parts[] = {data};
    transport->stream().send(0, Channel::kRepair, parts);
  }
  void poll(Nanos now) { transport->stream().poll(*this, now); }
  std::string received() {
    transport->datagram().flush();
    transport->datagram().receive(*this, 1 << 20);
    std::string out;
    for (const auto& d : datagrams) out += d;
    datagrams.clear();
    return out;
  }
  std::string received_frames() {
    std::string out;
    for (const auto& f : frames) out += f;
    frames.clear();
    return out;
  }
  const FaultCounters& counters() { return static_cast<Interceptor&>(*transport).counters(); }

  ByLetter classifier;
  EchoTransport* echo;
  std::unique_ptr<Transport> transport;
  std::vector<std::string> datagrams, frames;
};

size_t at(FaultAction a) { return static_cast<size_t>(a); }

TEST(Interceptor, NoRulesMeansNoInterceptor) {
  Rig rig("");
  EXPECT_EQ(rig.transport.get(), rig.echo);
}

TEST(Interceptor, BadTextIsRefused) {
  auto made = intercept(std::make_unique<EchoTransport>(), "drop:rate=7", nullptr);
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
}

TEST(Interceptor, DropsDuplicatesAndReordersBothWays) {
  for (const std::string dir : {"in", "out"}) {
    Rig drop("drop:after=1,count=2,dir=" + dir);
    drop.put_all("abcde");
    EXPECT_EQ(drop.received(), "ade") << dir;
    EXPECT_EQ(drop.counters().datagrams[at(FaultAction::kDrop)], 2u);

    Rig twice("duplicate:after=1,count=1,dir=" + dir);
    twice.put_all("abc");
    EXPECT_EQ(twice.received(), "abbc") << dir;

    Rig reorder("reorder:after=1,count=1,hold=2,dir=" + dir);
    reorder.put_all("abcde");
    EXPECT_EQ(reorder.received(), "acdbe") << dir;
    EXPECT_EQ(static_cast<Interceptor&>(*reorder.transport).hits(), std::vector<uint64_t>{1});
  }
}

TEST(Interceptor, DelaysUntilThePolledTimeHasCome) {
  for (const std::string dir : {"in", "out"}) {
    Rig rig("delay:time=10,count=1,dir=" + dir);
    rig.poll(5 * kMilli);
    rig.put_all("ab");
    EXPECT_EQ(rig.received(), "b") << dir;
    rig.transport->wait(kSecond);
    EXPECT_EQ(rig.echo->waited, 10 * kMilli) << "a wait must end when the delay does";
    rig.poll(15 * kMilli - 1);
    EXPECT_EQ(rig.received(), "");
    rig.poll(15 * kMilli);
    EXPECT_EQ(rig.received(), "a") << dir;
    rig.transport->wait(kSecond);
    EXPECT_EQ(rig.echo->waited, kSecond);
  }
}

TEST(Interceptor, AReorderedLastMessageComesByTime) {
  Rig rig("reorder:hold=100,time=3");
  rig.put("z");
  EXPECT_EQ(rig.received(), "");
  rig.poll(3 * kMilli);
  EXPECT_EQ(rig.received(), "z");
}

TEST(Interceptor, CorruptionFlipsOneBit) {
  for (const std::string dir : {"in", "out"}) {
    Rig rig("corrupt:dir=" + dir);
    const std::string message(100, 'x');
    for (int i = 0; i < 50; ++i) rig.put(message);
    const std::string got = rig.received();
    ASSERT_EQ(got.size(), 5000u);
    for (size_t d = 0; d < 50; ++d) {
      int flipped = 0;
      for (size_t i = 0; i < 100; ++i) {
        flipped += std::popcount(static_cast<unsigned char>(got[d * 100 + i] ^ 'x'));
      }
      EXPECT_EQ(flipped, 1);
    }
  }
}

TEST(Interceptor, ADroppedDatagramDoesNotLookLikeAnEmptySocket) {
  Rig rig("drop:count=3");
  rig.put_all("abcd");
  EXPECT_EQ(rig.transport->datagram().receive(rig, 1), 1u);
  EXPECT_EQ(rig.datagrams, std::vector<std::string>{"d"});
}

TEST(Interceptor, SeedsRepeatAndDiffer) {
  const auto run = [](const std::string& seed) {
    Rig rig("drop:rate=0.5,seed=" + seed);
    for (int i = 0; i < 200; ++i) rig.put(std::string(1, static_cast<char>('A' + i % 26)));
    return rig.received();
  };
  EXPECT_EQ(run("1"), run("1"));
  EXPECT_NE(run("1"), run("2"));
}

TEST(Interceptor, RateAndBurstLengthAreAsAsked) {
  for (const double burst : {1.0, 8.0}) {
    Rig rig("drop:rate=0.2,seed=3,burst=" + std::to_string(burst));
    constexpr int kMessages = 40000;
    std::string pattern;  // '1' for a lost one
    int runs = 0, lost = 0;
    bool before = false;
    for (int i = 0; i < kMessages; ++i) {
      rig.put("m");
      const bool hit = rig.received().empty();
      lost += hit ? 1 : 0;
      runs += hit && !before ? 1 : 0;
      before = hit;
    }
    EXPECT_NEAR(static_cast<double>(lost) / kMessages, 0.2, 0.03) << burst;
    // Independent losses form runs with a mean of 1 / (1 - rate).
    EXPECT_NEAR(static_cast<double>(lost) / runs, burst > 1 ? burst : 1.25, burst > 1 ? 1.2 : 0.1);
  }
}

TEST(Interceptor, PredicatesChooseMessages) {
  Rig rig("drop:type=d;duplicate:type=p");
  rig.put_all("adpbd");
  EXPECT_EQ(rig.received(), "appb");
}

TEST(Interceptor, FramesAreHitOnlyWhenTheTypeIsNamed) {
  Rig any("drop");
  any.frame("f");
  any.poll(1);
  EXPECT_EQ(any.received_frames(), "f");
  for (const std::string dir : {"in", "out"}) {
    Rig rig("drop:type=f,dir=" + dir + ";delay:type=s,time=2,dir=" + dir +
            ";duplicate:type=t,dir=" + dir + ";corrupt:type=c,dir=" + dir);
    for (const char* f : {"f", "g", "s", "t", "c"}) rig.frame(f);
    rig.poll(kMilli);
    const std::string got = rig.received_frames();
    ASSERT_EQ(got.size(), 4u) << dir;
    EXPECT_EQ(got.substr(0, 3), "gtt");
    EXPECT_NE(got[3], 'c');
    rig.poll(4 * kMilli);
    EXPECT_EQ(rig.received_frames(), "s") << dir;
    EXPECT_EQ(rig.counters().frames[at(FaultAction::kDrop)], 1u);
    EXPECT_EQ(rig.counters().datagrams[at(FaultAction::kDrop)], 0u);
  }
}

TEST(Interceptor, HeldOutgoingMessagesWaitForRoom) {
  Rig rig("delay:count=1,time=1,dir=out;duplicate:after=1,count=1,dir=out");
  rig.echo->room = 1;
  rig.put("a");  // held
  rig.put("b");  // its duplicate finds no room
  EXPECT_EQ(rig.counters().suppressed, 1u);
  rig.poll(2 * kMilli);
  EXPECT_EQ(rig.received(), "b");
  EXPECT_EQ(rig.received(), "a");
}

TEST(Interceptor, ARefusedDatagramIsTakenLaterAndWaitsAreShort) {
  Rig rig("refuse:rate=1,after=2,count=3");
  Datagram& out = rig.transport->datagram();
  rig.put("a");
  EXPECT_TRUE(out.flush());
  EXPECT_TRUE(out.lend({1, 1}, 1).empty());
  EXPECT_FALSE(out.flush());
  EXPECT_TRUE(out.lend({1, 1}, 1).empty());
  rig.transport->wait(kSecond);  // nothing would report the room
  EXPECT_EQ(rig.echo->waited, kMilli);
  rig.transport->wait(kSecond);
  EXPECT_EQ(rig.echo->waited, kSecond);
  rig.put("b");
  EXPECT_EQ(rig.received(), "ab");
  EXPECT_EQ(rig.counters().datagrams[at(FaultAction::kRefuse)], 3u);
}

TEST(Interceptor, SaysThatFaultsAreInjected) {
  Rig rig("drop;corrupt");
  EXPECT_THAT(rig.transport->describe(), HasSubstr("FAULTS INJECTED"));
}

}  // namespace
}  // namespace mcast
