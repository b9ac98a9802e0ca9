// Every block (all-gather: each rank's) is cut in the same way, so a part is an operation of the
// same kind. Readable ends reach all parts through their common region; completed ends are joined.
#include "runtime/subgroups.h"

namespace mcast {
namespace {

constexpr size_t kLeastBlock = 4u << 20;  // of a block; less is not worth the overhead

}  // namespace

bool Subgroups::carries(const wire::Descriptor& d) const {
  return (d.kind == wire::Kind::kBroadcast || d.kind == wire::Kind::kAllgather) &&
         d.bytes >= kLeastBlock;
}

std::string Subgroups::streams_text() const {
  return "every rank, in " + std::to_string(groups_.size()) + " subgroups";
}

void Subgroups::add_to(GroupStats& stats) const {
  for (const auto& group : groups_) {
    const GroupStats part = group->stats();
    add_counters(stats, part);
    for (size_t m = 0; m < part.repair_from_to.size(); m++) {
      stats.repair_from_to[m].first += part.repair_from_to[m].first;
      stats.repair_from_to[m].second += part.repair_from_to[m].second;
    }
  }
}

void Subgroups::post_parts(const Post& whole, const std::shared_ptr<Parts>& parts) {
  const auto [share, lengths] = Shares(whole.descriptor.bytes, groups_.size());
  std::vector<std::shared_ptr<Prefix>> ends;
  for (uint32_t output = 0; whole.on_completed && output < whole.outputs.size(); output++) {
    ends.push_back(std::make_shared<Prefix>(
        lengths, [on_completed = whole.on_completed, output](uint64_t bytes) {
          on_completed(output, bytes);
        }));
  }
  for (size_t i = 0; i < groups_.size(); i++) {
    if (lengths[i] == 0) continue;
    const auto cut = [&, i, share = share, length = lengths[i]](const Slice& s) {
      return s.region ? within(s, i * share, length) : s;
    };
    Post p;
    p.descriptor = whole.descriptor;
    p.descriptor.bytes = lengths[i];
    p.posted = whole.posted;
    p.input = cut(whole.input);
    for (const Slice& output : whole.outputs) p.outputs.push_back(cut(output));
    p.completed_step = whole.completed_step;
    if (whole.on_completed) {
      p.on_completed = [ends, i](uint32_t stream, uint64_t bytes) {
        ends[stream]->raise(i, bytes);
      };
    }
    part(*groups_[i], std::move(p), parts);
  }
}

}  // namespace mcast
