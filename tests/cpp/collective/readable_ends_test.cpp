// Sources whose readable end rises piece by piece, and outputs whose completed ends are used
// immediately, while the operation runs.
#include <gtest/gtest.h>

#include "support/program.h"

namespace mcast::test {
namespace {

constexpr size_t kStep = 16 << 10;
constexpr size_t kBlockBytes = 10 * kStep + 77;

class ReadableEnds : public testing::TestWithParam<bool> {
 protected:
  static ClusterOptions options(double loss = 0) {
    ClusterOptions o;
    o.ranks = 3;
    o.group.name = "job";
    o.group.multicast.wanted = !GetParam();
    o.net.faults.drop = loss;
    o.net.seed = 7;
    return o;
  }

  // Sources start with no readable bytes. Completed ends are recorded, and the bytes below them are
  // checked immediately.
  void stage(Cluster& c, uint64_t id) {
    c.adjust = [this, id](Member rank, Post& post) {
      if (post.input.length > 0) {
        auto region = std::make_shared<Region>(post.input.data(), post.input.length,
                                               std::make_shared<Slice>(post.input));
        region->set_readable(0);
        sources_[rank] = region;
        post.input = {region, 0, post.input.length};
      }
      const bool all = post.descriptor.kind == wire::Kind::kAllgather;
      post.completed_step = kStep;
      post.on_completed = [this, id, all, rank, root = post.descriptor.root,
                           outputs = post.outputs](uint32_t output, uint64_t bytes) {
        uint64_t& end = ends_[{rank, output}];
        EXPECT_GT(bytes, end);
        EXPECT_TRUE(bytes / kStep > end / kStep || bytes == outputs[output].length);
        end = bytes;
        const ConstBytes seen = outputs[output].bytes().first(bytes);
        EXPECT_EQ(check_pattern(id, all ? output : root, seen), bytes);
      };
    };
  }

  std::map<Member, std::shared_ptr<Region>> sources_;
  std::map<std::pair<Member, uint32_t>, uint64_t> ends_;
};

TEST_P(ReadableEnds, BytesBeyondTheEndAreNotSent) {
  Cluster c(options());
  stage(c, 5);
  const Runs runs = broadcast_all(c, 1, kBlockBytes, 5);
  for (size_t ready = 0; ready < kBlockBytes; ready += kStep) {
    sources_[1]->set_readable(ready);
    c.run_for(200 * kMilli);
    for (const Member r : {0, 2}) {
      EXPECT_LE((ends_[{r, 0}]), ready);
      // Everything but the chunk that the readable end cuts, once a step is complete.
      if (ready >= 2 * kStep) {
        EXPECT_GE((ends_[{r, 0}]), ready - 2 * kStep);
      }
      EXPECT_FALSE(runs[r]->done());
    }
  }
  sources_[1]->set_readable(kBlockBytes);
  finish(c, runs);
  EXPECT_EQ((ends_[{0, 0}]), kBlockBytes);
  EXPECT_EQ((ends_[{2, 0}]), kBlockBytes);
  EXPECT_EQ(ends_.count({1, 0}), 0u) << "the own block has no completed end";
}

TEST_P(ReadableEnds, SmallOperationsWaitForTheirSourceInOrder) {
  Cluster c(options());
  stage(c, 8);
  Runs first = allgather_all(c, 1000, 8);
  const auto held = sources_;
  c.adjust = {};
  Runs second = allgather_all(c, 500, 9);
  for (const auto& [rank, source] : held) {
    if (rank != 2) source->set_readable(1000);
  }
  c.run_for(300 * kMilli);
  for (const auto& run : first) EXPECT_FALSE(run->done());
  held.at(2)->set_readable(999);
  c.run_for(100 * kMilli);
  for (const auto& run : first) EXPECT_FALSE(run->done());
  held.at(2)->set_readable(1000);
  first.insert(first.end(), second.begin(), second.end());
  finish(c, first);
}

TEST_P(ReadableEnds, CompletedEndsOfAnAllgatherUnderLossAreOnlyEverTrue) {
  Cluster c(options(0.05));
  stage(c, 11);
  const Runs runs = allgather_all(c, kBlockBytes, 11);
  for (const auto& [rank, source] : sources_) {
    for (size_t piece = 1; piece <= 11; piece++) {
      c.at(c.now() + static_cast<Nanos>(piece * (rank + 1)) * kMilli, [source = source, piece] {
        source->set_readable(std::min(kBlockBytes, piece * kStep));
      });
    }
  }
  finish(c, runs);
  for (Member r = 0; r < 3; r++) {
    for (uint32_t output = 0; output < 3; output++) {
      if (output != r) {
        EXPECT_EQ((ends_[{r, output}]), kBlockBytes);
      }
    }
  }
}

// Makes all of a rank's inputs readable in small steps, all at the same pace.
void fill_slowly(Cluster& c, Member rank, const std::vector<std::shared_ptr<Region>>& inputs) {
  for (size_t i = 0; i < inputs.size(); i++) {
    for (size_t at = kStep / 2;; at += kStep) {
      const size_t ready = std::min(at, inputs[i]->size());
      c.at(c.now() + static_cast<Nanos>(at / 100 + 17 * rank + 5 * i) * kMicro,
           [region = inputs[i], ready] { region->set_readable(ready); });
      if (ready == inputs[i]->size()) break;
    }
  }
}

// Inputs of reductions become readable in small steps, and every completed end of a result is
// correct when it is reported.
TEST_P(ReadableEnds, ReductionsWaitForTheirSources) {
  for (const size_t bytes : {size_t{1000}, size_t{40'000}, size_t{700'004}}) {
    for (const wire::Kind kind :
         {wire::Kind::kReduceScatter, wire::Kind::kAllreduce, wire::Kind::kReduce}) {
      SCOPED_TRACE(std::string(wire::kind_name(kind)) + " of " + std::to_string(bytes));
      Cluster c(options(0.01));
      std::map<Member, std::vector<std::shared_ptr<Region>>> inputs;
      std::map<std::pair<Member, uint32_t>, uint64_t> ends;
      std::map<Member, std::vector<std::function<bool()>>> true_at_the_end;
      c.at_done = [&](const OpRun& run) {
        for (const auto& look : true_at_the_end[run.rank]) EXPECT_TRUE(look());
      };
      c.adjust = [&](Member rank, Post& post) {
        for (Slice& input : post.reduce->inputs) {
          auto region =
              std::make_shared<Region>(input.data(), input.length, std::make_shared<Slice>(input));
          region->set_readable(0);
          inputs[rank].push_back(region);
          input = {region, 0, input.length};
        }
        post.completed_step = kStep;
        const bool scatter = kind == wire::Kind::kReduceScatter;
        const size_t share = (bytes / 4 + 2) / 3 * 4;
        post.on_completed = [&, rank, scatter, share, output = post.reduce->output](
                                uint32_t block, uint64_t final_to) {
          EXPECT_GT(final_to, std::exchange(ends[{rank, block}], final_to));
          // Bytes below the completed end must not change until the operation ends.
          const ConstBytes now =
              output.bytes().subspan(scatter ? 0 : block * share).first(final_to);
          true_at_the_end[rank].push_back(
              [output, now, seen = std::vector<std::byte>(now.begin(), now.end())] {
                return std::equal(now.begin(), now.end(), seen.begin());
              });
        };
      };
      Runs runs;
      for (Member r = 0; r < 3; r++) runs.push_back(c.reduction(r, kind, 1, bytes, 5));
      c.run_for(200 * kMilli);
      for (const auto& run : runs) EXPECT_FALSE(run->done());
      EXPECT_TRUE(ends.empty());
      for (const auto& [rank, regions] : inputs) fill_slowly(c, rank, regions);
      finish(c, runs);
      if (kind == wire::Kind::kReduceScatter) {
        for (Member r = 0; r < 3; r++) EXPECT_EQ((ends[{r, 0}]), bytes / 4 * 4);
      }
      if (kind == wire::Kind::kAllreduce && bytes >= 40'000) {
        EXPECT_EQ(ends.size(), 6u) << "the last block is shorter";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(By, ReadableEnds, testing::Bool(),
                         [](const auto& p) { return p.param ? "ring" : "multicast"; });

}  // namespace
}  // namespace mcast::test
