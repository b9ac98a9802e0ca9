// The transport contract as a typed test suite: whatever csrc/core/transport/transport.h promises,
// for any transport. To run it over a new one, write a World and instantiate:
//
//   struct MyWorld {
//     std::unique_ptr<Transport> make();       // one more endpoint that can reach the others
//     Nanos now();                             // the time given to poll()
//     void pass(std::vector<Transport*> all);  // nothing happened: let a little time pass
//     MulticastAddress address(int n);         // the n-th of a few distinct addresses
//     static constexpr bool kDropsEcho = true; // optional: own datagrams never come back
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(Mine, TransportContract, MyWorld);
#pragma once

#include "transport/transport_fixture.h"

namespace mcast::testing {

TYPED_TEST_SUITE_P(TransportContract);

TYPED_TEST_P(TransportContract, MulticastReachesEveryMemberAndEchoes) {
  this->make_nodes(4);
  const auto to = this->world_.address(0);
  for (auto& n : this->nodes_) ASSERT_TRUE(n->dg().join(to).ok());
  const Buffer data = pattern(700, 1);
  ASSERT_TRUE(this->send_datagram(this->node(0), to, data));
  ASSERT_TRUE(this->flush(this->node(0)));
  const auto first = this->nodes_.begin() + (drops_echo<TypeParam>() ? 1 : 0);
  ASSERT_TRUE(this->pump([&] {
    return std::all_of(first, this->nodes_.end(), [](auto& n) { return !n->datagrams.empty(); });
  }));
  this->settle();
  for (auto n = first; n != this->nodes_.end(); ++n) {
    EXPECT_EQ((*n)->datagrams, std::vector<Buffer>{data});
  }
  if (drops_echo<TypeParam>()) {
    EXPECT_TRUE(this->node(0).datagrams.empty());
  }
}

TYPED_TEST_P(TransportContract, DatagramsOfEverySizeArriveWhole) {
  this->make_nodes(2);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(this->node(1).dg().join(to).ok());
  const size_t max = this->node(0).dg().max_datagram(to);
  ASSERT_GE(max, 500u);
  std::vector<Buffer> sent;
  for (size_t size : {size_t{1}, size_t{2}, size_t{31}, size_t{64}, size_t{333}, max - 1, max}) {
    sent.push_back(pattern(size, size));
    ASSERT_TRUE(this->send_datagram(this->node(0), to, sent.back()));
    ASSERT_TRUE(this->flush(this->node(0)));
  }
  EXPECT_TRUE(this->pump([&] { return this->node(1).datagrams.size() >= sent.size(); }));
  EXPECT_EQ(this->node(1).datagrams, sent);
}

// A transport that cannot gather reports it, and the lent memory can still be filled.
TYPED_TEST_P(TransportContract, GatheredOrCopiedADatagramArrivesWhole) {
  this->make_nodes(2);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(this->node(1).dg().join(to).ok());
  Datagram& dg = this->node(0).dg();
  const size_t most = dg.max_datagram(to);
  const auto memory = std::make_shared<Buffer>(pattern(5 * most, 3));
  const Slice block{std::make_shared<Region>(memory->data(), memory->size(), memory), 0,
                    memory->size()};
  std::vector<Buffer> sent;
  for (const size_t offset : {size_t{0}, size_t{1}, most, 5 * most - 7}) {
    const size_t length = std::min(most - 32, memory->size() - offset);
    Buffer whole = pattern(32, offset);
    const auto from = memory->begin() + static_cast<std::ptrdiff_t>(offset);
    whole.insert(whole.end(), from, from + static_cast<std::ptrdiff_t>(length));
    Bytes lent;
    ASSERT_TRUE(this->pump([&] { return !(lent = dg.lend(to, whole.size())).empty(); }));
    std::copy_n(whole.begin(), 32, lent.begin());
    const bool gathered = dg.commit_gather(32, block, offset, length);
    EXPECT_EQ(gathered, dg.gather_from() != SIZE_MAX);
    if (!gathered) {
      std::copy(whole.begin() + 32, whole.end(), lent.begin() + 32);
      dg.commit(whole.size());
    }
    ASSERT_TRUE(this->flush(this->node(0)));
    sent.push_back(std::move(whole));
  }
  EXPECT_TRUE(this->pump([&] { return this->node(1).datagrams.size() >= sent.size(); }));
  EXPECT_EQ(this->node(1).datagrams, sent);
}

TYPED_TEST_P(TransportContract, LendsNothingBeyondTheLargestDatagram) {
  this->make_nodes(1);
  const auto to = this->world_.address(0);
  EXPECT_TRUE(this->node(0).dg().lend(to, this->node(0).dg().max_datagram(to) + 1).empty());
  EXPECT_FALSE(this->node(0).dg().lend(to, this->node(0).dg().max_datagram(to)).empty());
}

TYPED_TEST_P(TransportContract, BatchesOfEqualSizesKeepTheirBoundaries) {
  this->make_nodes(2);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(this->node(1).dg().join(to).ok());
  std::vector<Buffer> sent;
  for (size_t i = 0; i < 150; ++i) {  // several batches, the last one partial, with a short tail
    sent.push_back(pattern(i == 149 ? 77 : 480, i));
    ASSERT_TRUE(this->send_datagram(this->node(0), to, sent.back()));
  }
  ASSERT_TRUE(this->flush(this->node(0)));
  EXPECT_TRUE(this->pump([&] { return this->node(1).datagrams.size() >= sent.size(); }));
  EXPECT_EQ(this->node(1).datagrams, sent);
}

TYPED_TEST_P(TransportContract, BatchesOfUnequalSizesAndAddressesKeepTheirBoundaries) {
  this->make_nodes(3);
  const auto first = this->world_.address(0), second = this->world_.address(1);
  ASSERT_TRUE(this->node(1).dg().join(first).ok());
  ASSERT_TRUE(this->node(2).dg().join(second).ok());
  std::vector<Buffer> sent_first, sent_second;
  Rng rng(5);
  for (size_t i = 0; i < 200; ++i) {
    const bool one = rng.chance(0.8);
    const Buffer data = pattern(1 + rng.below(400), i);
    ASSERT_TRUE(this->send_datagram(this->node(0), one ? first : second, data));
    (one ? sent_first : sent_second).push_back(data);
  }
  ASSERT_TRUE(this->flush(this->node(0)));
  EXPECT_TRUE(this->pump([&] {
    return this->node(1).datagrams.size() >= sent_first.size() &&
           this->node(2).datagrams.size() >= sent_second.size();
  }));
  EXPECT_EQ(this->node(1).datagrams, sent_first);
  EXPECT_EQ(this->node(2).datagrams, sent_second);
}

TYPED_TEST_P(TransportContract, CommitMayBeShorterThanLent) {
  this->make_nodes(2);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(this->node(1).dg().join(to).ok());
  std::vector<Buffer> sent;
  for (size_t size : {300, 200, 300, 300}) {
    sent.push_back(pattern(size, size));
    const Bytes lent = this->node(0).dg().lend(to, 400);
    ASSERT_EQ(lent.size(), 400u);
    std::copy(sent.back().begin(), sent.back().end(), lent.begin());
    this->node(0).dg().commit(size);
  }
  ASSERT_TRUE(this->flush(this->node(0)));
  EXPECT_TRUE(this->pump([&] { return this->node(1).datagrams.size() >= sent.size(); }));
  EXPECT_EQ(this->node(1).datagrams, sent);
}

TYPED_TEST_P(TransportContract, ALendThatIsNotCommittedIsForgotten) {
  this->make_nodes(2);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(this->node(1).dg().join(to).ok());
  ASSERT_FALSE(this->node(0).dg().lend(to, 100).empty());
  const Buffer data = pattern(50, 3);
  ASSERT_TRUE(this->send_datagram(this->node(0), to, data));
  ASSERT_TRUE(this->flush(this->node(0)));
  EXPECT_TRUE(this->pump([&] { return !this->node(1).datagrams.empty(); }));
  this->settle();
  EXPECT_EQ(this->node(1).datagrams, std::vector<Buffer>{data});
}

TYPED_TEST_P(TransportContract, JoinsAreCountedAndLeaveStopsDelivery) {
  this->make_nodes(2);
  Node& n = this->node(1);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(n.dg().join(to).ok());
  ASSERT_TRUE(n.dg().join(to).ok());
  n.dg().leave(to);
  ASSERT_TRUE(this->send_datagram(this->node(0), to, pattern(10, 1)));
  ASSERT_TRUE(this->flush(this->node(0)));
  ASSERT_TRUE(this->pump([&] { return n.datagrams.size() == 1; }));
  n.dg().leave(to);
  ASSERT_TRUE(this->send_datagram(this->node(0), to, pattern(10, 2)));
  ASSERT_TRUE(this->flush(this->node(0)));
  this->settle();
  EXPECT_EQ(n.datagrams.size(), 1u);
}

TYPED_TEST_P(TransportContract, OnlyTheJoinedAddressIsReceived) {
  this->make_nodes(2);
  const auto joined = this->world_.address(0), other = this->world_.address(1);
  auto other_port = joined;
  ++other_port.port;
  ASSERT_TRUE(this->node(1).dg().join(joined).ok());
  const Buffer last = pattern(10, 3);
  ASSERT_TRUE(this->send_datagram(this->node(0), other, pattern(10, 1)));
  ASSERT_TRUE(this->send_datagram(this->node(0), other_port, pattern(10, 2)));
  ASSERT_TRUE(this->send_datagram(this->node(0), joined, last));
  ASSERT_TRUE(this->flush(this->node(0)));
  ASSERT_TRUE(this->pump([&] { return !this->node(1).datagrams.empty(); }));
  this->settle();
  EXPECT_EQ(this->node(1).datagrams, std::vector<Buffer>{last});
}

TYPED_TEST_P(TransportContract, PortZeroIsRefusedAndTheBudgetIsPositive) {
  this->make_nodes(1);
  auto to = this->world_.address(0);
  EXPECT_GT(this->node(0).dg().receive_budget(), 0u);
  ASSERT_TRUE(this->node(0).dg().join(to).ok());
  EXPECT_GT(this->node(0).dg().receive_budget(), 0u);
  to.port = 0;
  EXPECT_EQ(this->node(0).dg().join(to).code(), Code::kInvalidArgument);
}

TYPED_TEST_P(TransportContract, StreamsCarryFramesBothWaysInOrder) {
  this->make_nodes(2);
  const PeerId at0 = this->introduce(0, 1), at1 = this->introduce(1, 0);
  Rng rng(1);
  std::vector<Buffer> there[kChannels], back[kChannels];
  for (size_t i = 0; i < 600; ++i) {
    const size_t c = rng.below(kChannels);
    const Buffer data = pattern(1 + rng.below(i % 50 == 0 ? 60000 : 300), i);
    const bool forward = rng.chance(0.5);
    this->node(forward ? 0 : 1).send(forward ? at0 : at1, static_cast<Channel>(c), data);
    (forward ? there : back)[c].push_back(data);
    if (i % 100 == 0) this->poll_all();
  }
  EXPECT_TRUE(
      this->pump([&] { return this->node(0).frames.size() + this->node(1).frames.size() >= 600; }));
  for (size_t c = 0; c < kChannels; ++c) {
    EXPECT_EQ(this->node(1).frames_on(static_cast<Channel>(c)), there[c]);
    EXPECT_EQ(this->node(0).frames_on(static_cast<Channel>(c)), back[c]);
  }
  for (const auto& f : this->node(0).frames) EXPECT_EQ(f.peer, at0);
  EXPECT_TRUE(this->node(0).downs.empty());
  EXPECT_TRUE(this->node(1).downs.empty());
}

TYPED_TEST_P(TransportContract, PartsOfAFrameAreJoined) {
  this->make_nodes(2);
  const PeerId peer = this->introduce(0, 1);
  const Buffer whole = pattern(5000, 9);
  for (int round = 0; round < 3; ++round) {  // before, during and after connecting
    std::vector<ConstBytes> parts;
    const ConstBytes bytes(whole);
    for (size_t at = 0; at < whole.size(); at += 200) parts.push_back(bytes.subspan(at, 200));
    this->node(0).st().send(peer, Channel::kControl, parts);
    const ConstBytes two[] = {bytes.first(1), {}, bytes.subspan(1)};
    this->node(0).st().send(peer, Channel::kControl, two);
    ASSERT_TRUE(this->pump(
        [&] { return this->node(1).frames.size() >= static_cast<size_t>(round + 1) * 2; }));
  }
  for (const auto& f : this->node(1).frames) EXPECT_EQ(f.data, whole);
}

TYPED_TEST_P(TransportContract, LargestFramesPass) {
  this->make_nodes(2);
  const PeerId peer = this->introduce(0, 1);
  for (int i = 0; i < 40; ++i) {  // more than sockets hold: queues, partial I/O
    this->node(0).send(peer, Channel::kControl, pattern(kMaxControlFrame, 1));
    this->node(0).send(peer, Channel::kRepair, pattern(kMaxBulkFrame, 2));
    this->node(0).send(peer, Channel::kReduce, pattern(kMaxBulkFrame, 3));
  }
  EXPECT_TRUE(this->pump([&] { return this->node(1).frames.size() >= 120; }));
  ASSERT_EQ(this->node(1).frames.size(), 120u);
  for (const auto& f : this->node(1).frames) {
    const bool control = f.channel == Channel::kControl;
    ASSERT_EQ(f.data, pattern(control ? kMaxControlFrame : kMaxBulkFrame,
                              static_cast<uint64_t>(f.channel) + 1));
  }
  EXPECT_EQ(this->node(0).st().queued(peer, Channel::kRepair), 0u);
}

TYPED_TEST_P(TransportContract, SimultaneousConnectsLoseAndDoubleNothing) {
  for (int round = 0; round < 20; ++round) {
    this->nodes_.clear();
    this->make_nodes(2);
    const PeerId at0 = this->introduce(0, 1), at1 = this->introduce(1, 0);
    std::vector<Buffer> there, back;
    for (size_t i = 0; i < 30; ++i) {
      there.push_back(pattern(100 + i, i));
      back.push_back(pattern(200 + i, i));
      this->node(0).send(at0, Channel::kControl, there.back());
      this->node(1).send(at1, Channel::kControl, back.back());
      // Different interleavings: which node polls first, and when.
      if (i == 3 && round % 3 == 1) this->node(1).st().poll(this->node(1), this->world_.now());
      if (i == 5 && round % 3 == 2) this->node(0).st().poll(this->node(0), this->world_.now());
    }
    ASSERT_TRUE(this->pump(
        [&] { return this->node(0).frames.size() >= 30 && this->node(1).frames.size() >= 30; }));
    this->settle(5);
    EXPECT_EQ(this->node(1).frames_on(Channel::kControl), there);
    EXPECT_EQ(this->node(0).frames_on(Channel::kControl), back);
    EXPECT_TRUE(this->node(0).downs.empty());
    EXPECT_TRUE(this->node(1).downs.empty());
  }
}

TYPED_TEST_P(TransportContract, AnUnknownPeerGetsTheIdItIsAddedWithLater) {
  this->make_nodes(2);
  const PeerId at0 = this->introduce(0, 1);
  this->node(0).send(at0, Channel::kControl, pattern(20, 1));
  ASSERT_TRUE(this->pump([&] { return !this->node(1).frames.empty(); }));
  const PeerId at1 = this->introduce(1, 0);
  EXPECT_EQ(this->node(1).frames[0].peer, at1);
  EXPECT_EQ(this->introduce(1, 0), at1);
  this->node(1).send(at1, Channel::kControl, pattern(30, 2));
  ASSERT_TRUE(this->pump([&] { return !this->node(0).frames.empty(); }));
  EXPECT_EQ(this->node(0).frames[0].data, pattern(30, 2));
}

TYPED_TEST_P(TransportContract, AnEndpointThatExpectsPeersLetsInNobodyElse) {
  this->make_nodes(3);
  const uint64_t uids[] = {this->node(1).st().address(true).uid, 12345};
  const std::vector<PeerId> ids = this->node(0).st().expect(uids);
  ASSERT_EQ(ids.size(), 2u);
  this->node(2).send(this->introduce(2, 0), Channel::kControl, pattern(20, 1));
  this->settle();
  const PeerId at1 = this->introduce(1, 0);
  this->node(1).send(at1, Channel::kControl, pattern(30, 2));
  ASSERT_TRUE(this->pump([&] { return !this->node(0).frames.empty(); }));
  ASSERT_EQ(this->node(0).frames.size(), 1u);
  EXPECT_EQ(this->node(0).frames[0].peer, ids[0]);
  EXPECT_EQ(this->node(0).frames[0].data, pattern(30, 2));
  EXPECT_TRUE(this->node(0).downs.empty());
  // Its address is known from then on, also for other channels.
  this->node(0).send(ids[0], Channel::kReduce, pattern(40, 3));
  ASSERT_TRUE(this->pump([&] { return !this->node(1).frames.empty(); }));
  EXPECT_EQ(this->node(1).frames[0].peer, at1);
  EXPECT_EQ(this->node(1).frames[0].data, pattern(40, 3));
}

TYPED_TEST_P(TransportContract, AVanishedPeerIsReportedOnce) {
  this->make_nodes(2);
  const PeerId peer = this->introduce(0, 1);
  for (size_t c = 0; c < kChannels; ++c) {
    this->node(0).send(peer, static_cast<Channel>(c), pattern(20, c + 1));
  }
  ASSERT_TRUE(this->pump([&] { return this->node(1).frames.size() == kChannels; }));
  this->node(1).transport.reset();
  ASSERT_TRUE(this->pump([&] { return !this->node(0).downs.empty(); }));
  this->node(0).send(peer, Channel::kControl, pattern(20, 9));  // dropped
  this->settle();
  ASSERT_EQ(this->node(0).downs.size(), 1u);
  EXPECT_EQ(this->node(0).downs[0].peer, peer);
  EXPECT_FALSE(this->node(0).downs[0].graceful);
  EXPECT_FALSE(this->node(0).downs[0].why.ok());
  EXPECT_EQ(this->node(0).st().queued(peer, Channel::kControl), 0u);
}

TYPED_TEST_P(TransportContract, AGoodbyeDeliversEverythingAndIsGraceful) {
  this->make_nodes(3);
  const PeerId to_leaver = this->introduce(0, 2), to_zero = this->introduce(2, 0);
  // Bytes of the survivor are in flight too; they must not destroy the leaver's last ones.
  for (int i = 0; i < 50; ++i) {
    this->node(2).send(to_zero, Channel::kRepair, pattern(kMaxBulkFrame, 1));
    this->node(2).send(to_zero, Channel::kControl, pattern(100, 2));
    this->node(0).send(to_leaver, Channel::kControl, pattern(5000, 3));
  }
  ASSERT_TRUE(this->close(this->node(2)));
  this->node(2).transport.reset();
  ASSERT_TRUE(this->pump([&] { return !this->node(0).downs.empty(); }));
  EXPECT_EQ(this->node(0).frames_on(Channel::kRepair),
            std::vector<Buffer>(50, pattern(kMaxBulkFrame, 1)));
  EXPECT_EQ(this->node(0).frames_on(Channel::kControl), std::vector<Buffer>(50, pattern(100, 2)));
  this->settle();
  ASSERT_EQ(this->node(0).downs.size(), 1u);
  EXPECT_TRUE(this->node(0).downs[0].graceful) << this->node(0).downs[0].why.to_string();
}

TYPED_TEST_P(TransportContract, BothSidesMaySayGoodbyeAtOnce) {
  this->make_nodes(2);
  const PeerId at0 = this->introduce(0, 1), at1 = this->introduce(1, 0);
  this->node(0).send(at0, Channel::kControl, pattern(100, 1));
  this->node(1).send(at1, Channel::kControl, pattern(100, 2));
  ASSERT_TRUE(this->pump(
      [&] { return this->node(0).frames.size() == 1 && this->node(1).frames.size() == 1; }));
  EXPECT_TRUE(this->pump([&] {
    const bool zero = this->node(0).st().close_peers(this->world_.now());
    const bool one = this->node(1).st().close_peers(this->world_.now());
    return zero && one;
  }));
  for (auto& n : this->nodes_) {
    for (const auto& down : n->downs) EXPECT_TRUE(down.graceful) << down.why.to_string();
  }
}

TYPED_TEST_P(TransportContract, ClosingWithoutPeersIsAtOnce) {
  this->make_nodes(2);
  this->introduce(0, 1);
  EXPECT_TRUE(this->node(0).st().close_peers(this->world_.now()));
}

TYPED_TEST_P(TransportContract, WakeEndsAWaitNowOrTheNextOne) {
  this->make_nodes(1);
  Transport& t = *this->node(0).transport;
  t.wake();
  t.wait(kNever);  // a lost wake-up shows as a hang
  std::thread other([&] { t.wake(); });
  t.wait(kNever);
  other.join();
}

TYPED_TEST_P(TransportContract, WaitEndsWhenAFrameOrADatagramArrives) {
  this->make_nodes(2);
  const auto to = this->world_.address(0);
  ASSERT_TRUE(this->node(1).dg().join(to).ok());
  const PeerId peer = this->introduce(0, 1);
  this->node(0).send(peer, Channel::kControl, pattern(5, 1));
  ASSERT_TRUE(this->pump([&] { return !this->node(1).frames.empty(); }));
  this->settle();
  ASSERT_TRUE(this->send_datagram(this->node(0), to, pattern(5, 2)));
  ASSERT_TRUE(this->flush(this->node(0)));
  this->node(1).transport->wait(kNever);
  EXPECT_TRUE(this->pump([&] { return !this->node(1).datagrams.empty(); }));
  this->node(0).send(peer, Channel::kControl, pattern(5, 3));
  this->node(1).transport->wait(kNever);
  EXPECT_TRUE(this->pump([&] { return this->node(1).frames.size() == 2; }));
}

TYPED_TEST_P(TransportContract, AnAbandonedEndpointIsSilent) {
  this->make_nodes(1);
  ASSERT_TRUE(this->node(0).dg().join(this->world_.address(0)).ok());
  this->node(0).transport->abandon_after_fork();
  this->node(0).transport.reset();
}

TYPED_TEST_P(TransportContract, DescribesItself) {
  this->make_nodes(1);
  const std::string text = this->node(0).transport->describe();
  EXPECT_EQ(text.rfind(this->node(0).transport->name(), 0), 0u) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

REGISTER_TYPED_TEST_SUITE_P(
    TransportContract, MulticastReachesEveryMemberAndEchoes, DatagramsOfEverySizeArriveWhole,
    GatheredOrCopiedADatagramArrivesWhole, LendsNothingBeyondTheLargestDatagram,
    BatchesOfEqualSizesKeepTheirBoundaries, BatchesOfUnequalSizesAndAddressesKeepTheirBoundaries,
    CommitMayBeShorterThanLent, ALendThatIsNotCommittedIsForgotten,
    JoinsAreCountedAndLeaveStopsDelivery, OnlyTheJoinedAddressIsReceived,
    PortZeroIsRefusedAndTheBudgetIsPositive, StreamsCarryFramesBothWaysInOrder,
    PartsOfAFrameAreJoined, LargestFramesPass, SimultaneousConnectsLoseAndDoubleNothing,
    AnUnknownPeerGetsTheIdItIsAddedWithLater, AnEndpointThatExpectsPeersLetsInNobodyElse,
    AVanishedPeerIsReportedOnce, AGoodbyeDeliversEverythingAndIsGraceful,
    BothSidesMaySayGoodbyeAtOnce, ClosingWithoutPeersIsAtOnce, WakeEndsAWaitNowOrTheNextOne,
    WaitEndsWhenAFrameOrADatagramArrives, AnAbandonedEndpointIsSilent, DescribesItself);

}  // namespace mcast::testing
