// Runs reductions that end without late ranks on a cluster. The frames between the ranks show which
// ranks were left out.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/program.h"
#include "wire/aggregation.h"

namespace mcast::test {

constexpr Nanos kPartialLimit = 50 * kMilli;

inline ClusterOptions partial_options(uint32_t ranks) {
  ClusterOptions o = with_stations(ranks);
  o.group.partial = kPartialLimit;
  return o;
}

class PartialWorld {
 public:
  explicit PartialWorld(Cluster& cluster) : c(cluster), next_(c.size()) {
    c.net().set_frame_hook([this](size_t, size_t, Channel, ConstBytes frame) {
      wire::FrameHeader h;
      if (wire::parse_frame(frame, h) && h.type == wire::FrameType::kPartial) note(h, frame);
      return true;
    });
    c.absent = [this](Sequence s) {
      const auto at = masks_.find(s);
      return at == masks_.end() ? std::vector<Member>() : at->second.ranks();
    };
    c.adjust = [this](Member rank, Post& post) {
      post.sequence = next_[rank]++;  // a stand-in is not a call
      post.contributors = std::make_shared<std::atomic<uint32_t>>(c.size());
      counts_[post.sequence].push_back(post.contributors);
      if (adjust) adjust(rank, post);
    };
  }

  // Same as Cluster::adjust.
  std::function<void(Member rank, Post& post)> adjust;
  // Ranks whose inputs are missing in the operation.
  std::vector<Member> missing(Sequence s) const { return c.absent(s); }
  // Checks the number of contributors that each call of an operation gets: "" or the error.
  std::string check_counts() const {
    for (const auto& [sequence, counts] : counts_) {
      for (const auto& count : counts) {
        if (count->load() != c.size() - missing(sequence).size()) {
          return "operation " + std::to_string(sequence) + ": " + std::to_string(count->load()) +
                 " contributors";
        }
      }
    }
    return two_masks_ ? "two masks of one operation" : "";
  }

  Cluster& c;

 private:
  void note(const wire::FrameHeader& h, ConstBytes frame) {
    wire::PartialResult mask;
    if (!wire::parse_partial(frame.subspan(wire::kFrameHeader), mask)) return;
    const auto [at, fresh] = masks_.try_emplace(h.sequence, mask);
    two_masks_ = two_masks_ || (!fresh && !(at->second == mask));
  }

  std::vector<Sequence> next_;
  std::map<Sequence, wire::PartialResult> masks_;
  std::map<Sequence, std::vector<std::shared_ptr<std::atomic<uint32_t>>>> counts_;
  bool two_masks_ = false;
};

struct PartialCall {
  wire::Kind kind = wire::Kind::kAllreduce;
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  size_t bytes = 3 << 19;  // of the vector: more than the minimum for stations

  wire::Descriptor of(uint32_t ranks) const {
    const size_t each = kind == wire::Kind::kReduceScatter ? bytes / ranks / 8 * 8 : bytes;
    wire::Descriptor d{kind, static_cast<uint8_t>(element), kNoMember, each, ""};
    d.reduction = static_cast<uint8_t>(reduction);
    return d;
  }
};

// Reductions of all sorts: exact and rounded, in wider accumulators, with factors, and a maximum.
constexpr std::pair<Element, Reduction> kPartialReductions[] = {
    {Element::kFloat32, Reduction::kSum},
    {Element::kInt32, Reduction::kSum},
    {Element::kBFloat16, Reduction::kAvg},
    {Element::kFloat32, Reduction::kPremulSum},
    {Element::kFloat64, Reduction::kMax}};

struct PartialCase {
  ClusterOptions options;
  PartialCall call;
  std::string name;
};

// One call of each of these reductions, in both orders of folding.
inline std::vector<PartialCase> partial_cases() {
  std::vector<PartialCase> cases;
  for (const auto& [element, reduction] : kPartialReductions) {
    const bool scatter = cases.size() % 3 == 0;
    const PartialCall call{scatter ? wire::Kind::kReduceScatter : wire::Kind::kAllreduce, element,
                           reduction};
    ClusterOptions o = partial_options(4);
    o.group.agreed.fold = cases.size() % 2 == 0 ? FoldOrder::kTurn : FoldOrder::kRank;
    cases.push_back(
        {o, call, std::string(wire::kind_name(call.kind)) + ", " + element_name(element)});
  }
  return cases;
}

// Groups that compare digests of blocks, over both paths.
inline std::vector<ClusterOptions> partial_options_with_digests() {
  std::vector<ClusterOptions> both;
  for (const bool ring : {false, true}) {
    ClusterOptions o = partial_options(4);
    if (o.security == crypto::Mode::kOff) o.security = crypto::Mode::kAuth;
    o.group.multicast.wanted = !ring;
    o.group.agreed.source_auth = true;
    both.push_back(o);
  }
  return both;
}

inline Runs call_all_but(PartialWorld& w, const wire::Descriptor& d, uint64_t id,
                         const std::vector<Member>& late = {}) {
  Runs runs;
  for (Member r = 0; r < w.c.size(); r++) {
    if (std::find(late.begin(), late.end(), r) == late.end()) runs.push_back(w.c.call(r, d, id));
  }
  return runs;
}

inline Runs call_those(PartialWorld& w, const wire::Descriptor& d, uint64_t id,
                       const std::vector<Member>& ranks) {
  Runs runs;
  for (const Member r : ranks) runs.push_back(w.c.call(r, d, id));
  return runs;
}

// One operation for which some ranks are late, then one for which none is.
inline void expect_partial(PartialWorld& w, const PartialCall& call,
                           const std::vector<Member>& late) {
  const auto d = call.of(w.c.size());
  Runs runs = call_all_but(w, d, 1, late);
  ASSERT_TRUE(w.c.run([&] { return all_done(runs); }, kSecond)) << "waits for a late rank";
  for (const auto& run : call_those(w, d, 1, late)) runs.push_back(run);
  finish(w.c, runs);
  EXPECT_EQ(w.missing(0), late);
  finish(w.c, call_all_but(w, d, 2));
  EXPECT_TRUE(w.missing(1).empty());
  EXPECT_EQ(w.check_counts(), "");
  EXPECT_EQ(w.c.total(Counter::partial_results), w.c.size());
  EXPECT_EQ(w.c.total(Counter::agg_malformed), 0u);
  EXPECT_EQ(w.c.total(Counter::malformed), 0u);
  EXPECT_EQ(w.c.total(Counter::agg_lost), 0u);
}

}  // namespace mcast::test
