// The stream endpoint if peers, fabric and device misbehave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verbs/pair.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

class VerbsStream : public ::testing::Test, protected Pair {};

TEST_F(VerbsStream, CompletionErrorsOfEachKindNameThePeerAndTheReason) {
  const std::pair<ibv_wc_status, const char*> kinds[] = {
      {IBV_WC_RETRY_EXC_ERR, "does not answer"},
      {IBV_WC_RNR_RETRY_EXC_ERR, "posted no receives"},
      {IBV_WC_REM_ACCESS_ERR, "remote access"},
      {IBV_WC_REM_INV_REQ_ERR, "invalid request"},
      {IBV_WC_REM_OP_ERR, "remote operation"},
      {IBV_WC_LOC_LEN_ERR, "local length"},
      {IBV_WC_LOC_PROT_ERR, "local protection"},
      {IBV_WC_LOC_QP_OP_ERR, "local operation"},
      {IBV_WC_FATAL_ERR, "fatal"},
      {IBV_WC_GENERAL_ERR, "completion status"},
  };
  for (const auto& [status, words] : kinds) {
    Pair p;
    p.connect();
    p.fake().send_status = status;
    p.nodes[0].send(p.peer, Channel::kControl, pattern(10, 2));
    p.poll();
    const std::string why = p.down(0);
    EXPECT_THAT(why, HasSubstr(words));
    EXPECT_THAT(why, HasSubstr("connection to peer 127.0.0.1:"));
    EXPECT_FALSE(p.nodes[0].downs[0].graceful);
  }
}

TEST_F(VerbsStream, ReceivesThatAreMissingBreakTheConnectionInsteadOfHanging) {
  connect();
  fake().take_receives_away();
  nodes[0].send(peer, Channel::kControl, pattern(10, 2));
  poll();
  EXPECT_THAT(down(0), HasSubstr("receiver-not-ready"));
}

TEST_F(VerbsStream, MissingListenerEndsAtTheLivenessLimit) {
  nodes[1].transport.reset();
  nodes[0].send(peer, Channel::kControl, pattern(10, 1));
  poll(static_cast<int>(world.options.liveness_limit / kMilli) - 500);
  EXPECT_TRUE(nodes[0].downs.empty()) << "it may be starting";
  poll(1000);
  EXPECT_THAT(down(0), HasSubstr("no connection"));
  EXPECT_THAT(down(0), HasSubstr("reason 8"));
  EXPECT_GT(transports[0]->stream_stats().connect_retries, 5u);
}

TEST_F(VerbsStream, PeerOfAGroupBeingCreatedIsTriedUntilItsTimeLimit) {
  nodes[1].transport.reset();
  const Nanos limit = world.options.liveness_limit;
  nodes[0].st().keep_trying(peer, now + 2 * limit);
  nodes[0].send(peer, Channel::kControl, pattern(10, 1));
  poll(static_cast<int>(2 * limit / kMilli) - 500);
  EXPECT_TRUE(nodes[0].downs.empty());
  poll(1000);
  EXPECT_THAT(down(0), HasSubstr("reason 8"));
}

TEST_F(VerbsStream, SilenceWhileConnectingEndsInBoundedTime) {
  fake().connects_silent = true;
  nodes[0].send(peer, Channel::kControl, pattern(10, 1));
  poll(static_cast<int>(world.options.liveness_limit / kMilli) - 100);
  EXPECT_TRUE(nodes[0].downs.empty());
  poll(200);
  EXPECT_THAT(down(0), HasSubstr("no connection"));
}

// Addresses and routes are not answered: a switch that starts, or a lost packet.
TEST_F(VerbsStream, SilenceWhileResolvingIsTriedAgain) {
  fake().resolves_silent = true;
  nodes[0].send(peer, Channel::kControl, pattern(10, 1));
  poll(2100);
  fake().resolves_silent = false;
  fake().time_out_resolves();
  poll(300);
  EXPECT_TRUE(nodes[0].downs.empty());
  EXPECT_EQ(nodes[1].frames.size(), 1u);
}

TEST_F(VerbsStream, SilenceWhileResolvingEndsAtTheLivenessLimit) {
  fake().resolves_silent = true;
  nodes[0].send(peer, Channel::kControl, pattern(10, 1));
  const Nanos limit = world.options.liveness_limit;
  for (Nanos t = 0; t < limit - kSecond; t += kSecond) {
    poll(1000);
    fake().time_out_resolves();
    ASSERT_TRUE(nodes[0].downs.empty()) << t;
  }
  poll(1100);
  EXPECT_THAT(down(0), HasSubstr("no connection"));
  EXPECT_THAT(down(0), HasSubstr("address resolution failed"));
}

// 255 connections are made in one poll, then each side sends as much as its credits allow.
TEST(VerbsStreams, EveryQueueHasRoomForAllThatItsConnectionsComplete) {
  constexpr size_t kPeers = 255;
  FakeVerbsWorld world;
  world.options.rcvbuf = 1;
  std::vector<Node> nodes(kPeers + 1);
  for (Node& n : nodes) n.transport = world.make();
  Node& hub = nodes[0];
  Nanos now = kSecond;
  const auto poll = [&](size_t first, int rounds) {
    for (; rounds > 0; --rounds) {
      now += kMilli;
      for (size_t i = first; i < nodes.size(); ++i) nodes[i].st().poll(nodes[i], now);
    }
  };
  std::vector<PeerId> peers, back;
  for (size_t i = 1; i <= kPeers; ++i) {
    peers.push_back(hub.st().add_peer(nodes[i].st().address(false)));
    back.push_back(nodes[i].st().add_peer(hub.st().address(false)));
    hub.send(peers.back(), Channel::kControl, pattern(8, i));
  }
  poll(0, 12);
  for (size_t i = 1; i <= kPeers; ++i) ASSERT_EQ(nodes[i].frames.size(), 1u) << i;
  EXPECT_EQ(world.fake->overcommits, 0u);
  for (size_t i = 1; i <= kPeers; ++i) {
    for (int k = 0; k < 20; ++k) hub.send(peers[i - 1], Channel::kControl, pattern(8, i));
    for (int k = 0; k < 20; ++k) nodes[i].send(back[i - 1], Channel::kControl, pattern(8, i));
  }
  poll(1, 3);  // the hub is busy
  EXPECT_EQ(world.fake->overflows, 0u);
  poll(0, 40);
  EXPECT_EQ(hub.frames.size(), 20 * kPeers);
  EXPECT_TRUE(hub.downs.empty());
  const size_t others = world.fake->completion_queues() - 2 * nodes.size();
  EXPECT_EQ(others, kPeers / verbs::kConnectionsPerQueue) << "no more queues than needed";
  nodes.clear();
}

TEST_F(VerbsStream, AnotherProcessAtTheAddressIsRefused) {
  StreamAddress wrong = nodes[1].st().address(false);
  wrong.uid ^= 1;
  const PeerId stranger = nodes[0].st().add_peer(wrong);
  nodes[0].send(stranger, Channel::kControl, pattern(10, 1));
  poll();
  EXPECT_THAT(down(0), HasSubstr("is not the expected process"));
  EXPECT_EQ(transports[1]->stream_stats().hello_refused, 1u);
}

TEST_F(VerbsStream, CreditsBoundBytesInFlight) {
  connect();
  for (int i = 0; i < 100; ++i) nodes[0].send(peer, Channel::kRepair, pattern(60000, i));
  // Only this side is polled: it may use the receives that the other has posted, and no more.
  for (int i = 0; i < 50; ++i) nodes[0].st().poll(nodes[0], now);
  EXPECT_GT(nodes[0].st().queued(peer, Channel::kRepair), 98u * 60000);
  EXPECT_GT(transports[0]->stream_stats().credit_waits, 0u);
  poll(2000);
  ASSERT_EQ(nodes[1].frames.size(), 101u);
  EXPECT_EQ(nodes[1].frames[50].data, pattern(60000, 49));
  EXPECT_GT(transports[1]->stream_stats().credit_messages, 0u) << "nothing went the other way";
}

TEST_F(VerbsStream, CreditsThatWereDueWithoutAFreeEntryAreReturnedWithTheNext) {
  connect();
  nodes[1].send(nodes[1].frames[0].peer, Channel::kControl, pattern(10, 1));
  poll();
  fake().hold_completions_of = fake().connection_numbers().front();
  for (size_t i = 0; i < verbs::kCredits; ++i) {
    nodes[0].send(peer, Channel::kControl, pattern(10, i));
  }
  constexpr size_t kFrames = 4 * verbs::kCredits;
  for (size_t i = 0; i < kFrames; ++i) {
    nodes[1].send(nodes[1].frames[0].peer, Channel::kControl, pattern(10, i));
  }
  poll(50);
  EXPECT_LT(nodes[0].frames.size(), kFrames) << "all entries are busy, no credits go back";
  fake().let_completions_go();
  poll(50);
  EXPECT_EQ(nodes[0].frames.size(), kFrames + 1);
}

TEST_F(VerbsStream, SleepingArmsEachQueueOnceHoweverLongItSpins) {
  world.options.cores = 64;
  auto made = verbs::make_transport(fake(), world.options);
  ASSERT_TRUE(made.ok());
  fake().arms = 0;
  (*made)->wait(100 * kMicro);
  EXPECT_EQ(fake().arms, 2u) << "that of datagrams, that of connections";
}

TEST_F(VerbsStream, ControlOvertakesBulk) {
  connect();
  for (int i = 0; i < 20; ++i) nodes[0].send(peer, Channel::kReduce, pattern(60000, i));
  nodes[0].send(peer, Channel::kControl, pattern(9, 9));
  poll(1000);
  size_t at = 0;
  while (at < nodes[1].frames.size() && nodes[1].frames[at].data.size() != 9) ++at;
  EXPECT_LT(at, 5u);
  EXPECT_EQ(nodes[1].frames.size(), 22u);
}

TEST_F(VerbsStream, MalformedMessagesAreAViolation) {
  const auto message = [](uint8_t kind, uint8_t flags, uint32_t length, size_t payload) {
    std::vector<std::byte> bytes(8 + payload);
    bytes[0] = std::byte{kind};
    bytes[1] = std::byte{flags};
    for (int i = 0; i < 4; ++i) bytes[static_cast<size_t>(4 + i)] = std::byte(length >> (8 * i));
    return bytes;
  };
  connect();
  const std::vector<std::vector<std::byte>> bad = {
      {},
      message(3, 0x80, 5, 5),         // no such kind
      message(0, 0x83, 5, 5),         // no such channel
      message(0, 0x00, 5, 5),         // not the first piece
      message(0, 0x80, 5, 6),         // more than the frame
      message(0, 0x80, 0, 5),         // empty frame
      message(0, 0x80, 1u << 30, 5),  // too long
      message(0, 0x80, 500, 0),       // empty piece
      message(1, 0x00, 0, 1),         // credits with a payload
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    Pair p;
    p.connect();
    p.fake().inject_message(bad[i]);
    p.poll();
    EXPECT_EQ(p.transports[0]->stream_stats().protocol_violations, 1u) << "message " << i;
    EXPECT_EQ(p.nodes[0].downs.size(), 1u) << "message " << i;
  }
}

TEST_F(VerbsStream, AReadBringsAPeersBytes) {
  connect();
  auto memory = std::make_shared<Buffer>(pattern(100000, 4));
  auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
  auto grant = transports[1]->stream().remote_memory()->expose({region, 0, region->size()}, 0);
  ASSERT_TRUE(grant.ok());
  RemoteMemory& remote = *transports[0]->stream().remote_memory();
  ASSERT_TRUE(remote.read(peer, grant->address + 1000, grant->key, 60000, 42));
  poll();
  ASSERT_EQ(nodes[0].reads.size(), 1u);
  EXPECT_EQ(nodes[0].reads[0].first, 42u);
  EXPECT_EQ(nodes[0].reads[0].second, Buffer(memory->begin() + 1000, memory->begin() + 61000));
  EXPECT_EQ(transports[0]->stream_stats().read_bytes, 60000u);
}

TEST_F(VerbsStream, AShortReadIsNoAnswer) {
  connect();
  auto memory = std::make_shared<Buffer>(pattern(4096, 4));
  auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
  auto grant = transports[1]->stream().remote_memory()->expose({region, 0, region->size()}, 0);
  ASSERT_TRUE(grant.ok());
  fake().cut_read = 1;
  ASSERT_TRUE(
      transports[0]->stream().remote_memory()->read(peer, grant->address, grant->key, 4096, 1));
  poll();
  EXPECT_TRUE(nodes[0].reads.empty());
  EXPECT_THAT(down(0), HasSubstr("4095 of 4096 bytes"));
}

TEST_F(VerbsStream, ReadsBeyondTheGrantBreakTheConnectionOfWhoTried) {
  connect();
  auto memory = std::make_shared<Buffer>(pattern(4096, 4));
  auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
  auto grant = transports[1]->stream().remote_memory()->expose({region, 0, region->size()}, 0);
  ASSERT_TRUE(grant.ok());
  ASSERT_TRUE(
      transports[0]->stream().remote_memory()->read(peer, grant->address + 1, grant->key, 4096, 1));
  poll();
  EXPECT_THAT(down(0), HasSubstr("remote access"));
}

TEST_F(VerbsStream, AGrantOutlivesItsRegionUntilItIsDropped) {
  connect();
  auto memory = std::make_shared<Buffer>(pattern(4096, 4));
  auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
  auto grant = transports[1]->stream().remote_memory()->expose({region, 0, region->size()}, 0);
  ASSERT_TRUE(grant.ok());
  region.reset();
  // A late read gets undefined bytes, and the connection lives.
  ASSERT_TRUE(
      transports[0]->stream().remote_memory()->read(peer, grant->address, grant->key, 4096, 1));
  poll();
  EXPECT_TRUE(nodes[0].downs.empty());
  EXPECT_EQ(nodes[0].reads.size(), 1u);
  const size_t before = fake().registrations();
  grant->hold.reset();
  EXPECT_EQ(fake().registrations(), before - 1);
  auto other = std::make_shared<Region>(memory->data(), memory->size(), memory);
  auto next = transports[1]->stream().remote_memory()->expose({other, 0, other->size()}, 0);
  ASSERT_TRUE(next.ok());
  EXPECT_NE(next->key, grant->key) << "same addresses, another allocation: registered anew";
}

// A repair must not pin the whole tensor, nor pin anything longer than needed.
TEST_F(VerbsStream, OnlyThePieceThatIsAskedForIsExposedAndOnlyWhileItIsGranted) {
  connect();
  auto memory = std::make_shared<Buffer>(3 * verbs::kGatherPiece + 9000);
  auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
  const Slice block{region, 5000, memory->size() - 5000};
  RemoteMemory& donor = *transports[1]->stream().remote_memory();
  fake().largest_registration = verbs::kGatherPiece + 4096;
  const size_t at = verbs::kGatherPiece + 77;
  auto one = donor.expose(block, at), same = donor.expose(block, at + 1000000);
  auto last = donor.expose(block, block.length - 1);
  ASSERT_TRUE(one.ok() && same.ok() && last.ok());
  EXPECT_EQ(one->key, same->key);
  EXPECT_EQ(one->address, reinterpret_cast<uint64_t>(block.data()));
  EXPECT_EQ(one->first, verbs::kGatherPiece);
  EXPECT_EQ(one->end, 2 * verbs::kGatherPiece + 4096);
  EXPECT_EQ(last->end, block.length);
  EXPECT_EQ(fake().remote_registrations(), 2u);
  ASSERT_TRUE(transports[0]->stream().remote_memory()->read(peer, one->address + one->end - 60000,
                                                            one->key, 60000, 1));
  poll();
  EXPECT_EQ(nodes[0].reads.size(), 1u);
  one->hold.reset();
  EXPECT_EQ(fake().remote_registrations(), 2u);
  same->hold.reset();
  last->hold.reset();
  EXPECT_EQ(fake().remote_registrations(), 0u) << "the region lives on";
}

TEST_F(VerbsStream, NoMoreIsExposedThanAQuarterOfTheMemoryLimitOrTheCap) {
  for (const size_t limit : {size_t{40000}, SIZE_MAX}) {
    fake().locked_memory = limit;
    auto donor = verbs::make_transport(fake(), world.options);
    ASSERT_TRUE(donor.ok());
    RemoteMemory& remote = *(*donor)->stream().remote_memory();
    const size_t most = limit == SIZE_MAX ? verbs::kMostExposed : limit / 4;
    const size_t size = limit == SIZE_MAX ? verbs::kGatherPiece : 5000;
    std::vector<RemoteGrant> grants;
    while (grants.size() < 1000) {
      // The device in memory does not access the memory that it registers.
      static std::byte byte;
      auto region = std::make_shared<Region>(&byte, size, nullptr);
      auto grant = remote.expose({region, 0, size}, 0);
      if (!grant.ok()) {
        EXPECT_EQ(grant.status().code(), Code::kResourceExhausted);
        break;
      }
      grants.push_back(*grant);
    }
    EXPECT_EQ(grants.size(), most / size);
    grants.pop_back();
    static std::byte byte;
    EXPECT_TRUE(remote.expose({std::make_shared<Region>(&byte, size, nullptr), 0, size}, 0).ok());
  }
}

TEST_F(VerbsStream, ReadsAreLimitedAndCatchUp) {
  connect();
  auto memory = std::make_shared<Buffer>(pattern(4096, 4));
  auto region = std::make_shared<Region>(memory->data(), memory->size(), memory);
  auto grant = transports[1]->stream().remote_memory()->expose({region, 0, region->size()}, 0);
  ASSERT_TRUE(grant.ok());
  RemoteMemory& remote = *transports[0]->stream().remote_memory();
  size_t taken = 0;
  while (taken < 100 && remote.read(peer, grant->address, grant->key, 64, taken)) ++taken;
  EXPECT_EQ(taken, verbs::kReads);
  poll();
  EXPECT_TRUE(remote.read(peer, grant->address, grant->key, 64, 99));
  EXPECT_FALSE(remote.read(peer, grant->address, grant->key, verbs::kReadBytes + 1, 100));
}

TEST_F(VerbsStream, ABrokenQueuePairIsReportedByItsEvent) {
  (void)nodes[1].st().add_peer(nodes[0].st().address(false));
  connect();
  fake().raise(IBV_EVENT_QP_FATAL);
  poll();
  EXPECT_EQ(nodes[0].downs.size() + nodes[1].downs.size(), 2u) << "the other side sees it end";
}

// Its event is not kept for a later queue pair with the same number.
TEST_F(VerbsStream, TheEventOfAQueuePairThatIsGoneIsForgotten) {
  connect();
  fake().raise(IBV_EVENT_QP_FATAL);
  transports[0]->device().poll_events(now);
  EXPECT_TRUE(transports[0]->device().any_broken());
  auto other = verbs::make_transport(fake(), world.options);
  ASSERT_TRUE(other.ok());
  for (ReadingNode& n : nodes) n.transport.reset();
  EXPECT_FALSE((*other)->device().any_broken());
}

TEST_F(VerbsStream, ARemovedDeviceEndsEveryConnectionWithTheReason) {
  (void)nodes[1].st().add_peer(nodes[0].st().address(false));
  connect();
  fake().raise(IBV_EVENT_DEVICE_FATAL);
  poll();
  EXPECT_THAT(down(0), HasSubstr("fake_0:1 reported a fatal error"));
  EXPECT_THAT(down(1), HasSubstr("fatal error"));
}

TEST_F(VerbsStream, ARemovedDeviceIsSeenThroughRdmaCmToo) {
  connect();
  fake().device_removal();
  poll();
  EXPECT_THAT(down(0), HasSubstr("the device was removed"));
}

TEST_F(VerbsStream, ALostLinkIsNamedWhenAConnectionBreaks) {
  connect();
  fake().raise(IBV_EVENT_PORT_ERR);
  poll();
  EXPECT_TRUE(nodes[0].downs.empty()) << "links come back";
  fake().break_connections(IBV_WC_RETRY_EXC_ERR);
  poll();
  EXPECT_THAT(down(0), HasSubstr("lost its link"));
}

TEST_F(VerbsStream, MemoryThatCannotBeRegisteredFailsTheConnectionWithTheReason) {
  fake().registration_error = ENOMEM;
  nodes[0].send(peer, Channel::kControl, pattern(10, 1));
  poll(static_cast<int>(world.options.liveness_limit / kMilli) + 500);
  EXPECT_THAT(down(0), HasSubstr("registering"));
}

}  // namespace
}  // namespace mcast::testing
