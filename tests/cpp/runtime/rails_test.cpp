// The posts of Rails on its two groups. With groups that only copy, in any order that readable ends
// and the host's queue allow, every rank gets every byte once, and completed ends are always
// correct.
#include "runtime/rails.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "runtime/copy_group.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

struct World {
  World(const std::vector<uint32_t>& host_of, const Agreed& agreed, uint64_t seed)
      : hosts(host_of), rng(seed) {
    const auto place = [&](Member m) {
      const auto& local = hosts.members(hosts.host_of(m));
      return static_cast<uint32_t>(std::find(local.begin(), local.end(), m) - local.begin());
    };
    for (Member m = 0; m < hosts.members(); m++) {
      const uint32_t h = hosts.host_of(m), p = place(m);
      const auto rail =
          std::make_shared<CopyGroup>("g/rail " + std::to_string(p), h, hosts.count());
      const auto host = std::make_shared<CopyGroup>("g/host " + std::to_string(h), p,
                                                    hosts.members() / hosts.count());
      on_rail[p].push_back(rail.get());
      on_host[h].push_back(host.get());
      ranks.push_back(std::make_unique<Rails>(hosts, m, agreed, rail, host));
    }
    for (auto* groups : {&on_rail, &on_host}) {
      for (auto& [key, group] : *groups) {
        std::sort(group.begin(), group.end(),
                  [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
      }
    }
    ended.assign(hosts.members(), 0);
    arrived.assign(hosts.members(), 0);
    marked.resize(hosts.members());
    outputs.resize(hosts.members());
    inputs.resize(hosts.members());
  }

  void post(Member m, const wire::Descriptor& d, uint64_t salt, bool ends) {
    const bool all = d.kind == wire::Kind::kAllgather;
    const size_t blocks = all ? hosts.members() : 1;
    outputs[m].assign(blocks * d.bytes, std::byte{});
    auto region = std::make_shared<Region>(outputs[m].data(), outputs[m].size(), nullptr);
    Post p;
    p.descriptor = d;
    for (size_t b = 0; b < blocks; b++) p.outputs.push_back({region, b * d.bytes, d.bytes});
    if (all || d.root == m) {
      p.input = p.outputs[all ? m : 0];
      for (size_t i = 0; i < d.bytes; i++) p.input.data()[i] = pattern(m, i, salt);
      inputs[m] = region;
    }
    marked[m].assign(blocks, 0);
    if (ends) {
      p.completed_step = 100'000;
      p.on_completed = [this, m, d, salt, all](uint32_t b, uint64_t bytes) {
        EXPECT_GT(bytes, marked[m][b]);
        const auto root = all ? static_cast<Member>(b) : d.root;
        for (size_t i = marked[m][b]; i < bytes; i += 977) {
          ASSERT_EQ(outputs[m][b * d.bytes + i], pattern(root, i, salt)) << i << " is not final";
        }
        marked[m][b] = bytes;
      };
    }
    Rails::Events events;
    events.arrived = [this, m] { arrived[m]++; };
    events.trouble = [this](const Status& why) { troubles.push_back(why); };
    events.ended = [this, m] { ended[m]++; };
    ranks[m]->post(std::move(p), std::move(events));
  }

  void run() {
    std::map<const void*, std::vector<size_t>> progress;
    for (int idle = 0; idle < 200;) {
      const bool rail = rng.chance(0.5);
      auto& groups = rail ? on_rail : on_host;
      auto it = groups.begin();
      std::advance(it, static_cast<int>(rng.below(groups.size())));
      idle = carry_out(it->second, progress[it->second[0]], rail, rng) ? 0 : idle + 1;
    }
  }

  const Hosts hosts;
  Rng rng;
  std::vector<std::unique_ptr<Rails>> ranks;
  std::map<uint32_t, std::vector<CopyGroup*>> on_rail, on_host;
  std::vector<int> ended, arrived;
  std::vector<std::vector<std::byte>> outputs;
  std::vector<std::shared_ptr<Region>> inputs;
  std::vector<std::vector<uint64_t>> marked;
  std::vector<Status> troubles;
};

TEST(Rails, CarryLargeOperations) {
  World world({0, 0, 1, 1}, {}, 1);
  const Rails& r = *world.ranks[0];
  EXPECT_TRUE(r.carries(call(wire::Kind::kBroadcast, 0, 4 << 20)));
  EXPECT_FALSE(r.carries(call(wire::Kind::kBroadcast, 0, (4 << 20) - 1)));
  EXPECT_TRUE(r.carries(call(wire::Kind::kAllgather, kNoMember, 1 << 20)));
  EXPECT_FALSE(r.carries(call(wire::Kind::kAllgather, kNoMember, (1 << 20) - 1)));
  EXPECT_FALSE(r.carries(call(wire::Kind::kReduceScatter, kNoMember, 64 << 20)));
}

TEST(Rails, DeliverExactBytesInAnyOrder) {
  const std::vector<std::vector<uint32_t>> mappings = {
      {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 1}, {0, 1, 2, 2, 1, 0}, {0, 1, 1, 0, 2, 3, 3, 2}};
  const Seeds all_seeds = seeds(40);
  int in_turns = 0;
  for (const uint64_t seed : all_seeds) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    Agreed agreed;
    agreed.budget = seed % 2 == 0 ? 128u << 10 : 4u << 20;
    World world(mappings[seed % mappings.size()], agreed, seed);
    const uint32_t members = world.hosts.members();
    Agreed on_rail = agreed;
    on_rail.members = world.hosts.count();
    on_rail.share = members / world.hosts.count();
    const bool all = rng.chance(0.5), ends = rng.chance(0.7);
    const auto root = static_cast<Member>(all ? kNoMember : rng.below(members));
    const size_t bytes = (all ? (4u << 20) / members : 4u << 20) + rng.below(700'000);
    const wire::Descriptor d =
        call(all ? wire::Kind::kAllgather : wire::Kind::kBroadcast, root, bytes);
    in_turns += all && make_plan(d, on_rail).chains < world.hosts.count() ? 1 : 0;
    for (Member m = 0; m < members; m++) world.post(m, d, seed, ends);
    world.run();
    for (Member m = 0; m < members; m++) {
      ASSERT_EQ(world.ended[m], 1);
      ASSERT_EQ(world.arrived[m], 1);
      for (size_t b = 0; b < (all ? members : 1); b++) {
        const auto from = all ? static_cast<Member>(b) : root;
        for (size_t i = 0; i < bytes; i++) {
          ASSERT_EQ(world.outputs[m][b * bytes + i], pattern(from, i, seed))
              << "byte " << i << " of block " << b << " at rank " << m;
        }
        if (ends && from != m) {
          EXPECT_EQ(world.marked[m][b], bytes);
        }
      }
    }
    // The ranks of a host post the same operations in the same order, and so do the ranks of a
    // rail.
    for (auto* groups : {&world.on_rail, &world.on_host}) {
      for (auto& [key, group] : *groups) {
        for (CopyGroup* g : group) {
          ASSERT_EQ(g->seen.size(), group[0]->seen.size());
          for (size_t i = 0; i < g->seen.size(); i++)
            EXPECT_TRUE(g->seen[i].same(group[0]->seen[i]));
        }
      }
    }
    EXPECT_TRUE(world.troubles.empty());
  }
  // Holds for some of the fixed seeds, unless only few were requested.
  EXPECT_TRUE(in_turns > 0 || all_seeds.size() < 40);
}

TEST(Rails, AFailureEndsAllPartsOnce) {
  for (const bool refused : {true, false}) {
    World world({0, 0, 1, 1}, {}, 1);
    if (refused) world.on_host[0][0]->refuses = true;
    world.post(0, call(wire::Kind::kAllgather, kNoMember, 2 << 20), 1, false);
    EXPECT_EQ(world.troubles.size(), refused ? 1u : 0u);
    EXPECT_EQ(world.ended[0], 0);
    world.ranks[0]->fail(make_error<ErrorId::rank_lost>(2, "it was killed"));
    EXPECT_EQ(world.troubles.size(), 1u);
    EXPECT_EQ(world.ended[0], 1);
    EXPECT_EQ(world.arrived[0], 0);
    // No post refers to the caller's memory any more.
    EXPECT_EQ(world.inputs[0].use_count(), 1);
  }
}

}  // namespace
}  // namespace mcast::test
