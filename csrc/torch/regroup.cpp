// Creates groups from a group: a subset of its ranks (split), ranks of several groups (merge), and
// the remaining ranks when some are gone (shrink). Each is a group of its own, created by the usual
// rendezvous on a store that only its ranks use.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "backend.h"
#include "gil.h"
#include "members.h"

namespace mcast::pg {
namespace {

constexpr int kShrinkAbort = 1;  // torch.distributed.SHRINK_ABORT

}  // namespace

c10::intrusive_ptr<McastOptions> ProcessGroupMcast::child_options(
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) const {
  // If a group has several backends, another backend's options arrive here; name and timeout count.
  const auto* const given = dynamic_cast<const McastOptions*>(opts.get());
  auto options = c10::make_intrusive<McastOptions>(given != nullptr ? *given : *options_);
  if (opts) {
    options->group_name = opts->group_name;
    options->timeout = opts->timeout;
  }
  options->global_ranks_in_group.clear();
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  options->enable_reconfigure = false;  // its ranks are known
#endif
  return options;
}

BackendPtr ProcessGroupMcast::split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_here("split");
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return {};
  auto options = child_options(opts);
  {
    // c10d calls this once for each device type; one group serves all of them.
    std::lock_guard lock(mutex_);
    auto before = last_split_ ? last_split_->lock() : BackendPtr();
    if (before && before->getBackendOptions()->group_name == options->group_name) return before;
  }
  const std::vector<uint64_t>& global = options_->global_ranks_in_group;
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "split: rank ", rank,
                      " is not one of the group's 0 to ", size_ - 1);
    const auto index = static_cast<size_t>(rank);
    options->global_ranks_in_group.push_back(global.empty() ? index : global[index]);
  }
  // A connection of its own, because waiting occupies it.
  auto child =
      c10::make_intrusive<ProcessGroupMcast>(store->clone(), static_cast<int>(own - ranks.begin()),
                                             static_cast<int>(ranks.size()), options);
  std::lock_guard lock(mutex_);
  last_split_.emplace(BackendPtr(child));
  return child;
}

BackendPtr ProcessGroupMcast::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                    const int& rank, const int& size) {
  check_here("merge");
  return c10::make_intrusive<ProcessGroupMcast>(store->clone(), rank, size, child_options(opts));
}

BackendPtr ProcessGroupMcast::shrink(const std::vector<int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_here("shrink");
  auto options = child_options(opts);
  const std::vector<uint64_t>& global = options_->global_ranks_in_group;
  std::string stay;
  int rank = -1, size = 0;
  for (int r = 0; r < size_; ++r) {
    if (std::find(excluded.begin(), excluded.end(), r) != excluded.end()) continue;
    if (r == rank_) rank = size;
    ++size;
    const auto index = static_cast<size_t>(r);
    options->global_ranks_in_group.push_back(global.empty() ? index : global[index]);
    stay += std::to_string(r) + ".";
  }
  TORCH_CHECK_VALUE(rank >= 0, "shrink: rank ", rank_, " is among those to be excluded");
  if (opts == nullptr) options->timeout = std::chrono::milliseconds(timeout_ms_.load());
  options->group_name = name_ + ":shrunk";
  if ((flags & kShrinkAbort) != 0) abort();
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "mcast_shrink/" + members_->incarnation + stay + "/", store_->clone());
  return c10::make_intrusive<ProcessGroupMcast>(store, rank, size, options);
}

}  // namespace mcast::pg
