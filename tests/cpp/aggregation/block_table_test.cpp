// Compares the table with a std::map on random blocks, and tests it when it is full.
#include "aggregation/fold/block_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "base/rng.h"
#include "support/seeds.h"

namespace mcast::aggregation {
namespace {

using Place = std::tuple<uint32_t, Sequence, uint32_t>;

Place place(const BlockKey& key) { return {key.job, key.operation, key.number}; }

struct ModelBlock {
  std::set<uint32_t> contributors;
  Nanos touched = 0;
};
using Model = std::map<Place, ModelBlock>;

// Describes the difference between the two; "" if there is none.
std::string compare(BlockTable& table, const Model& model, uint32_t contributors) {
  if (table.size() != model.size()) return "the number of blocks";
  for (const auto& [at, block] : model) {
    const auto& [job, operation, number] = at;
    const BlockRecord* const r = table.find({job, operation, number});
    if (r == nullptr) return "a block is lost";
    if (r->contributors != block.contributors.size()) return "the number of contributors";
    if (r->touched != block.touched) return "when it was touched";
    for (uint32_t c = 0; c < contributors; c++) {
      if (table.has(*r, c) != (block.contributors.count(c) != 0)) return "a contributor";
    }
  }
  size_t seen = 0;
  for (uint32_t i = 0; i < table.capacity(); i++) {
    const BlockRecord* const r = table.at(i);
    if (r == nullptr) continue;
    seen++;
    if (model.count(place(r->key)) == 0) return "a block that is none";
  }
  return seen == model.size() ? "" : "a block is there twice";
}

std::string run_against_model(uint64_t seed) {
  Rng rng(seed);
  const uint32_t contributors = rng.chance(0.5) ? 1 + rng.below(128) : 129 + rng.below(300);
  const auto most = static_cast<uint32_t>(1 + rng.below(40));
  BlockTable table(most, contributors);
  const size_t memory = table.memory();
  Model model;
  for (Nanos now = 1; now < 400; now++) {
    const BlockKey key{static_cast<uint32_t>(rng.below(2)), static_cast<Sequence>(rng.below(3)),
                       static_cast<uint32_t>(rng.below(20))};
    BlockRecord* r = table.find(key);
    if ((r != nullptr) != (model.count(place(key)) != 0)) return "found or not";
    if (r == nullptr) {
      r = table.insert(key, now);
      if ((r == nullptr) != (model.size() == most)) return "the bound";
      if (r == nullptr) continue;
      model[place(key)].touched = now;
    }
    if (rng.chance(0.3)) {
      table.erase(*r);
      model.erase(place(key));
    } else {
      ModelBlock& block = model[place(key)];
      const auto c = static_cast<uint32_t>(rng.below(contributors));
      const bool fresh = block.contributors.insert(c).second;
      if (fresh) block.touched = now;
      if (table.add(*r, c, now) != fresh) return "added twice";
    }
    if (rng.chance(0.02)) {
      const auto gone_before = model.size();
      size_t told = 0;
      table.erase_operation(key.job, key.operation, [&told](const BlockRecord&) { told++; });
      std::erase_if(model, [&key](const auto& entry) {
        return std::get<0>(entry.first) == key.job && std::get<1>(entry.first) == key.operation;
      });
      if (told != gone_before - model.size()) return "the blocks of an operation";
    }
    if (const std::string wrong = compare(table, model, contributors); !wrong.empty()) return wrong;
  }
  return table.memory() == memory ? "" : "it has grown";
}

TEST(BlockTable, IsAMap) { test::for_seeds(test::seeds(200), run_against_model); }

TEST(BlockTable, FullTableTakesNoMore) {
  BlockTable table(4, 8);
  EXPECT_EQ(table.capacity(), 4u);
  for (uint32_t q = 0; q < 4; q++) ASSERT_NE(table.insert({1, 1, q}, 0), nullptr);
  EXPECT_EQ(table.insert({1, 1, 4}, 0), nullptr);
  EXPECT_EQ(table.find({1, 1, 4}), nullptr);
  table.erase(*table.find({1, 1, 2}));
  EXPECT_NE(table.insert({1, 1, 4}, 0), nullptr);
  EXPECT_EQ(table.size(), 4u);
}

TEST(BlockTable, ARecordThatIsUsedAgainIsFresh) {
  BlockTable table(1, 300);
  BlockRecord* r = table.insert({1, 1, 1}, 5);
  table.add(*r, 299, 6);
  r->folded = true;
  table.erase(*r);
  for (uint32_t operation = 0; operation < 50; operation++) {
    r = table.insert({1, operation, 1}, 9);
    EXPECT_FALSE(r->folded);
    EXPECT_EQ(r->contributors, 0);
    EXPECT_EQ(r->touched, 9);
    EXPECT_FALSE(table.has(*r, 299));
    EXPECT_TRUE(table.add(*r, 299, 9));
    table.erase(*r);
  }
}

}  // namespace
}  // namespace mcast::aggregation
