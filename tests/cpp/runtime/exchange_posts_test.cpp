// Exchanges through groups of the engine: over sockets on loopback, in shared memory, in slots; and
// refusals before anything is sent.
#include <gtest/gtest.h>

#include "copy_group.h"
#include "support/errors.h"
#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

using wire::Kind;

// Length of the block from rank `from` to rank `to` in a call, and the seed of its bytes.
size_t exchange_length(Member from, Member to, size_t most) {
  return (from * 7 + to * 3) % 5 * most / 4;
}
size_t exchange_seed(Member from, Member to, int round) { return round * 10'000 + from * 100 + to; }

struct BlockMemory {
  std::vector<std::byte> in, out;
  std::vector<Slice> inputs, outputs;

  static Slice add(const std::shared_ptr<Region>& region, size_t& at, size_t bytes) {
    const Slice slice{region, at, bytes};
    at += bytes;
    return slice;
  }
};

// Runs an all_to_all, a gather and a scatter, the last two with blocks of `most` bytes.
bool exchange_all_ways(Group& group, size_t most, int round) {
  const Member self = group.rank();
  const Member size = group.size(), root = static_cast<Member>(round % size);
  for (const Kind kind : {Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
    const auto length = [&](Member from, Member to) -> size_t {
      if (kind == Kind::kAllToAll) return exchange_length(from, to, most);
      return (kind == Kind::kGather ? to : from) == root ? most : 0;
    };
    BlockMemory m;
    m.in.resize(most * size);
    m.out.resize(most * size);
    const auto in = std::make_shared<Region>(m.in.data(), m.in.size(), nullptr);
    const auto out = std::make_shared<Region>(m.out.data(), m.out.size(), nullptr);
    size_t sent = 0, came = 0;
    for (Member r = 0; r < size; r++) {
      fill(m.in, sent, length(self, r), exchange_seed(self, r, round));
      m.inputs.push_back(BlockMemory::add(in, sent, length(self, r)));
      m.outputs.push_back(BlockMemory::add(out, came, length(r, self)));
    }
    const Status s = wait_for([&](PostOptions o) {
      return group.post_exchange(kind, m.inputs, m.outputs, root, std::move(o));
    });
    EXPECT_TRUE(s.ok()) << s.to_string();
    if (!s.ok()) return false;
    size_t at = 0;
    for (Member r = 0; r < size; at += length(r, self), r++) {
      EXPECT_TRUE(holds(m.out, at, length(r, self), exchange_seed(r, self, round)))
          << wire::kind_name(kind) << " from rank " << r << " on rank " << self;
    }
  }
  return !testing::Test::HasFailure();
}

struct ExchangeCase {
  uint32_t ranks;
  size_t most;
  int rounds;
  const char* memory = "off";
};

class EngineExchanges : public testing::TestWithParam<ExchangeCase> {};

TEST_P(EngineExchanges, DeliverExactBytes) {
  const ExchangeCase c = GetParam();
  expect_all_good(run_ranks(c.ranks, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, c.ranks, store, {{"shared_memory", c.memory}});
    if (!group) return false;
    for (int round = 0; round < c.rounds; round++) {
      if (!exchange_all_ways(*group, c.most, round) || !barrier(*group).ok()) return false;
    }
    return group->close(5 * kSecond).ok();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, EngineExchanges,
    testing::Values(ExchangeCase{1, 1000, 2}, ExchangeCase{2, 0, 3}, ExchangeCase{2, 1, 20},
                    ExchangeCase{3, 300'007, 4}, ExchangeCase{5, 20'001, 6},
                    ExchangeCase{3, 1'001, 60, "auto"}, ExchangeCase{4, 1'000'003, 3, "auto"},
                    ExchangeCase{2, 0, 3, "slots"}, ExchangeCase{3, 1'001, 20, "slots"},
                    ExchangeCase{4, 300'003, 3, "slots"}));

TEST(Engine, ExchangesFailWhereRanksDisagree) {
  for (const char* memory : {"off", "auto", "slots"}) {
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      auto group = make_group("g", rank, 2, store, {{"shared_memory", memory}});
      if (!group) return false;
      std::vector<int32_t> data(100);
      const Slice all = whole(data);
      const Slice none{all.region, 0, 0}, mine{all.region, 0, rank == 0 ? 40u : 44u},
          theirs{all.region, 200, 40};
      const Status s = wait_for([&](PostOptions o) {
        return group->post_exchange(
            Kind::kAllToAll, {rank == 0 ? none : mine, rank == 0 ? mine : none},
            {rank == 0 ? none : theirs, rank == 0 ? theirs : none}, kNoMember, std::move(o));
      });
      const Status after = barrier(*group);
      const Status& found = s.ok() ? after : s;  // rank 1 may have got all its data
      EXPECT_TRUE(is_error(found, ErrorId::lengths_differ,
                           {{"sequence", "0"},
                            {"operation", "all_to_all"},
                            {"rank", "1"},
                            {"sent", "44"},
                            {"other", "0"},
                            {"expected", "40"}}));
      return !testing::Test::HasFailure();
    }));
  }
}

TEST(Engine, ExchangesRefuseWhatDoesNotFit) {
  CopyGroup group("g", 1, 3);
  std::vector<int32_t> data(100);
  const auto region = whole(data).region;
  const Slice none, block{region, 0, 40}, other{region, 40, 40}, third{region, 80, 40};
  const auto refused = [&](Kind kind, std::vector<Slice> inputs, std::vector<Slice> outputs,
                           Member root, const std::string& text) {
    const auto posted =
        group.post_exchange(kind, std::move(inputs), std::move(outputs), root, PostOptions());
    ASSERT_FALSE(posted.ok()) << text;
    EXPECT_EQ(posted.status().code(), Code::kInvalidArgument);
    EXPECT_NE(posted.status().message().find(text), std::string::npos) << posted.status().message();
  };
  refused(Kind::kAllToAll, {block}, {block}, kNoMember, "1 inputs and 1 outputs for 3 ranks");
  refused(Kind::kAllToAll, {none, block, none}, {none, none, none}, kNoMember,
          "output 1 has 0 bytes, the block has 40");
  refused(Kind::kAllToAll, {none, block, none}, {none, {region, 4, 40}, none}, kNoMember,
          "this rank's own blocks partly overlap");
  refused(Kind::kGather, {none, none, none}, {none, none, none}, 3, "root 3 is not a rank");
  refused(Kind::kGather, {none, block, none}, {other, {region, 80, 40}, none}, 1,
          "output 2 has 0 bytes, the block has 40");
  refused(Kind::kScatter, {block, other, {region, 80, 36}}, {none, third, none}, 1,
          "input 2 has 36 bytes, the block has 40");
  EXPECT_TRUE(group.posts.empty());
}

TEST(Engine, TheOwnBlockIsCopiedInTheCallOrThereAlready) {
  CopyGroup group("g", 1, 3);
  std::vector<int32_t> data(100);
  for (int32_t i = 0; i < 100; i++) data[static_cast<size_t>(i)] = i;
  const auto region = whole(data).region;
  const auto part = [&](size_t at) { return Slice{region, at, 40}; };
  const auto post = [&](Kind kind, std::vector<Slice> in, std::vector<Slice> out, Member root) {
    const auto posted =
        group.post_exchange(kind, std::move(in), std::move(out), root, PostOptions());
    EXPECT_TRUE(posted.ok()) << posted.status().to_string();
    Post last = std::move(group.posts.back());
    group.posts.clear();
    EXPECT_EQ(last.exchange->inputs[1].length + last.exchange->outputs[1].length, 0u);
    return last;
  };
  EXPECT_EQ(post(Kind::kAllToAll, {part(0), part(40), {}}, {{}, part(200), part(240)}, kNoMember)
                .descriptor.bytes,
            0u);
  EXPECT_EQ(data[50], 10) << "from byte 40 to byte 200";
  const Post gather = post(Kind::kGather, {{}, part(0), {}}, {part(280), part(320), part(360)}, 1);
  EXPECT_EQ(gather.descriptor.bytes, 40u);
  EXPECT_EQ(gather.exchange->outputs[2].offset, 360u);
  EXPECT_EQ(data[80], 0);
  // The posts of an engine's client, which has copied the blocks.
  EXPECT_EQ(post(Kind::kGather, {{}, {}, {}}, {part(280), {}, part(360)}, 1).descriptor.bytes, 40u);
  EXPECT_EQ(post(Kind::kScatter, {part(0), {}, part(80)}, {{}, {}, {}}, 1).descriptor.bytes, 40u);
  EXPECT_EQ(post(Kind::kScatter, {{}, {}, {}}, {part(0), {}, {}}, 0).exchange->outputs[0].length,
            40u);
}

}  // namespace
}  // namespace mcast::test
