// A cluster whose reductions end without late ranks. The frames between the ranks show which ranks
// were left out.
#pragma once

#include <map>

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
  explicit PartialWorld(const ClusterOptions& o) : c(o), next_(o.ranks) {
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

  Cluster c;

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

}  // namespace mcast::test
