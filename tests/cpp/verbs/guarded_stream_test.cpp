// Records on guarded connections over verbs: their contents, and the handling of records that are
// changed, truncated, duplicated, reflected or reordered in transit.
#include <gmock/gmock.h>

#include <algorithm>

#include "verbs/guarded_world.h"

namespace mcast::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kStreamHeader = 8;
const crypto::EpochLimits kLong{};

class VerbsRecords : public GuardedVerbs {
 protected:
  void pair(Mode mode = Mode::kSealed, const crypto::EpochLimits& limits = kLong) {
    add(some_identity(mode, 1, limits));
    add(some_identity(mode, 1, limits));
    introduce(1, 0);
    connect();
    back = node(1).frames[0].peer;
  }
  void clear() {
    fake().on_message = nullptr;
    nodes.clear();
    transports.clear();
  }
  // Queue pair of node 0's connection (0) or node 1's (1).
  uint32_t qp(size_t i) { return fake().connection_numbers().at(i); }
  void expect_forged(size_t at) {
    EXPECT_THAT(down(at), HasSubstr("seems to have sent a record that cannot be verified"));
    EXPECT_THAT(down(at), HasSubstr("peer 127.0.0.1:"));
    EXPECT_FALSE(node(at).downs.at(0).graceful);
    EXPECT_EQ(stats(at).protocol_violations, 1u);
    ASSERT_EQ(node(at).refusals.size(), 1u);
    EXPECT_EQ(node(at).refusals[0].first, Cause::forged);
    EXPECT_EQ(node(at).refusals[0].second.address, IpAddress::v4(0x7f000001));
  }

  PeerId back = kNoPeer;
};

TEST_F(VerbsRecords, CarryEverythingBothWaysThroughManyEpochs) {
  for (const Mode mode : {Mode::kAuth, Mode::kSealed}) {
    clear();
    pair(mode, few_records());
    std::vector<Buffer> there, here;
    for (size_t i = 0; i < 40; i++) {
      there.push_back(pattern(1 + i * 1600, i));
      here.push_back(pattern(kMaxBulkFrame - i, i));
      node(0).send(peer, Channel::kRepair, there.back());
      node(1).send(back, Channel::kReduce, here.back());
      node(1).send(back, Channel::kControl, pattern(9, i));
    }
    poll(3000);
    EXPECT_EQ(node(1).frames_on(Channel::kRepair), there);
    EXPECT_EQ(node(0).frames_on(Channel::kReduce), here);
    EXPECT_EQ(node(0).frames_on(Channel::kControl).size(), 40u);
    EXPECT_GT(stats(0).credit_messages + stats(1).credit_messages, 0u);
    EXPECT_TRUE(node(0).downs.empty() && node(1).downs.empty());
  }
}

TEST_F(VerbsRecords, FramesThatFillMessagesToTheByteArriveWhole) {
  pair();
  const size_t room = verbs::kEntry - crypto::record_size(kStreamHeader, false);
  std::vector<Buffer> sent;
  for (const size_t size : {room - 1, room, room + 1, 2 * room, size_t{1}}) {
    sent.push_back(pattern(size, size));
    node(0).send(peer, Channel::kRepair, sent.back());
  }
  size_t longest = 0;
  fake().on_message = [&longest](std::vector<std::byte>& bytes, uint32_t) {
    longest = std::max(longest, bytes.size());
    return true;
  };
  node(0).send(peer, Channel::kRepair, pattern(kMaxBulkFrame, 4));
  poll(60);
  sent.push_back(pattern(kMaxBulkFrame, 4));
  EXPECT_EQ(node(1).frames_on(Channel::kRepair), sent);
  EXPECT_EQ(longest, verbs::kEntry);
}

TEST_F(VerbsRecords, ACaptureHoldsFramesOnlyInClear) {
  for (const Mode mode : {Mode::kAuth, Mode::kSealed}) {
    clear();
    Buffer capture;
    fake().on_message = [&capture](std::vector<std::byte>& bytes, uint32_t) {
      capture.insert(capture.end(), bytes.begin(), bytes.end());
      return true;
    };
    pair(mode);
    const Buffer frame = pattern(20000, 7);
    node(0).send(peer, Channel::kRepair, frame);
    poll(50);
    ASSERT_EQ(node(1).frames.back().data, frame);
    const auto at = [&](size_t from) {
      return std::search(capture.begin(), capture.end(), frame.begin() + from,
                         frame.begin() + from + 16) != capture.end();
    };
    for (const size_t from : {0u, 5000u, 12000u, 19984u}) EXPECT_EQ(at(from), mode == Mode::kAuth);
  }
}

TEST_F(VerbsRecords, AByteThatIsChangedAnywhereEndsTheConnection) {
  for (const Mode mode : {Mode::kAuth, Mode::kSealed}) {
    // Length, kind, channel, credits, length of the frame, its bytes, the tag.
    for (const size_t byte : {0u, 3u, 4u, 5u, 6u, 8u, 12u, 100u, 111u, 112u, 127u}) {
      clear();
      pair(mode);
      change_first(4 + kStreamHeader + 100 + 16, [byte](std::vector<std::byte>& bytes) {
        bytes[byte] ^= std::byte{1};
        return true;
      });
      node(0).send(peer, Channel::kControl, pattern(100, 2));
      poll();
      expect_forged(1);
      EXPECT_EQ(node(1).frames.size(), 1u) << byte;
    }
  }
}

TEST_F(VerbsRecords, CutLengthenedOrInClearTheyEndTheConnection) {
  const Change kinds[] = {
      [](std::vector<std::byte>& b) { return b.pop_back(), true; },
      [](std::vector<std::byte>& b) { return b.push_back({}), true; },
      [](std::vector<std::byte>& b) { return b.resize(19), true; },
      [](std::vector<std::byte>& b) { return b.clear(), true; },
      // As an endpoint without a guard would send it.
      [](std::vector<std::byte>& b) {
        b.assign(kStreamHeader + 100, {});
        b[1] = std::byte{0x80};
        b[4] = std::byte{100};
        return true;
      },
  };
  for (const Change& change : kinds) {
    clear();
    pair();
    change_first(4 + kStreamHeader + 100 + 16, change);
    node(0).send(peer, Channel::kControl, pattern(100, 2));
    poll();
    expect_forged(1);
    EXPECT_EQ(node(1).frames.size(), 1u);
  }
}

TEST_F(VerbsRecords, DoubledOrReorderedTheyEndTheConnection) {
  for (const bool doubled : {true, false}) {
    clear();
    pair();
    std::vector<std::byte> first;
    fake().on_message = [&](std::vector<std::byte>& bytes, uint32_t from) {
      if (from != qp(0)) return true;
      if (first.empty()) {
        first = bytes;
        return doubled;
      }
      if (doubled) bytes = first;
      return true;
    };
    node(0).send(peer, Channel::kControl, pattern(50, 2));
    node(0).send(peer, Channel::kControl, pattern(50, 3));
    poll();
    expect_forged(1);
    EXPECT_EQ(node(1).frames.size(), doubled ? 2u : 1u);
  }
}

TEST_F(VerbsRecords, AReflectedOneOrOneOfAnotherConnectionEndsTheConnection) {
  for (const bool reflected : {true, false}) {
    clear();
    pair();
    add(some_identity(Mode::kSealed, 1, kLong));
    expect_working(2, 1);
    const uint32_t source = reflected ? qp(0) : fake().connection_numbers().at(2);
    std::vector<std::byte> taken;
    fake().on_message = [&](std::vector<std::byte>& bytes, uint32_t from) {
      if (from == source) taken = bytes;
      return true;
    };
    if (reflected) {
      node(0).send(peer, Channel::kControl, pattern(50, 2));
    } else {
      node(2).send(introduce(2, 1), Channel::kControl, pattern(50, 2));
    }
    poll();
    ASSERT_FALSE(taken.empty());
    fake().on_message = nullptr;
    fake().inject_from(qp(1), taken);  // to node 0
    poll();
    expect_forged(0);
  }
}

TEST_F(VerbsRecords, AGoodbyeIsBelievedOnlyOfWhoSaysIt) {
  pair();
  node(0).send(peer, Channel::kControl, pattern(10, 2));
  poll();
  EXPECT_TRUE(nodes[0]->st().close_peers(now) || nodes[0]->st().close_peers(now));
  poll();
  ASSERT_EQ(node(1).downs.size(), 1u);
  EXPECT_TRUE(node(1).downs[0].graceful) << node(1).downs[0].why.to_string();
}

TEST_F(VerbsRecords, KeysThatAreUsedUpAreNamed) {
  crypto::EpochLimits few = few_records();
  few.epochs = 3;
  pair(Mode::kSealed, few);
  for (size_t i = 0; i < 20; i++) node(0).send(peer, Channel::kControl, pattern(10, i));
  poll();
  EXPECT_THAT(down(0), HasSubstr("the keys of the connection to peer 127.0.0.1"));
  EXPECT_EQ(node(0).downs.at(0).why.code(), Code::kResourceExhausted);
  EXPECT_EQ(node(1).frames.size(), 15u) << "three epochs of five records";
}

TEST_F(VerbsRecords, NothingCanBeReadFromAGuardedEndpoint) {
  pair();
  EXPECT_EQ(node(0).st().remote_memory(), nullptr);
  EXPECT_EQ(node(0).dg().gather_from(), SIZE_MAX);
  expect_working(0, 1);
  EXPECT_EQ(fake().remote_registrations_ever, 0u);
}

}  // namespace
}  // namespace mcast::testing
