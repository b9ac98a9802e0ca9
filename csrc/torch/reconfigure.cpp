// reconfigure (torch 2.14): a group whose members change, by an ordinary rendezvous for each
// membership.
//   1. The handles, which the script has exchanged, give the members and their order.
//   2. The new rank 0 claims the membership's number on the store; the others wait for that. If it
//      was taken already, every rank stops.
//   3. Each rank leaves the previous members: calls that all of them have made end, unless one
// failed.
//   4. They create a group on keys of that number, as in a constructor.
// A handle is "mcast:GLOBAL:MEMBERSHIP:RANK"; a process keeps its global rank permanently.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <variant>

#include "gil.h"
#include "members.h"
#include "store.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace mcast::pg {
namespace {

using Handles = std::vector<c10d::ReconfigureHandle>;

// Returns the handle's global rank.
uint64_t global_rank(const c10d::ReconfigureHandle& handle) {
  unsigned long long global = 0;
  long long membership = 0;
  int rank = 0, end = 0;
  const bool sound =
      std::sscanf(handle.c_str(), "mcast:%llu:%lld:%d%n", &global, &membership, &rank, &end) == 3 &&
      static_cast<size_t>(end) == handle.size();
  TORCH_CHECK_VALUE(sound, "reconfigure: '", handle, "' is not a handle of an mcast group");
  return global;
}

// In the given order; a set is ordered by global ranks.
Handles in_order(const c10d::ReconfigureOptions& opts) {
  Handles handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, opts.handles);
  TORCH_CHECK_VALUE(!handles.empty(), "reconfigure: expected at least one handle");
  std::map<uint64_t, c10d::ReconfigureHandle> sorted;
  for (const auto& handle : handles) {
    const uint64_t global = global_rank(handle);
    TORCH_CHECK_VALUE(sorted.emplace(global, handle).second,
                      "reconfigure: two handles of global rank ", global);
  }
  if (std::holds_alternative<Handles>(opts.handles)) return handles;
  handles.clear();
  for (const auto& [global, handle] : sorted) handles.push_back(handle);
  return handles;
}

// The future members, by new rank.
struct Wanted {
  std::vector<uint64_t> global_ranks;
  std::string first;  // handle of rank 0
  int rank = 0;       // rank of `own`
};

Wanted read_handles(const c10d::ReconfigureOptions& opts, const c10d::ReconfigureHandle& own) {
  TORCH_CHECK_VALUE(opts.uuid >= 0, "reconfigure: expected a number of 0 or more, got ", opts.uuid);
  const Handles handles = in_order(opts);
  const auto at = std::find(handles.begin(), handles.end(), own);
  TORCH_CHECK_VALUE(at != handles.end(), "reconfigure: the handle of this rank, '", own,
                    "', is not among the ", handles.size(),
                    " given: exchange the current handles, since each reconfigure() changes them");
  Wanted wanted;
  wanted.first = handles[0];
  wanted.rank = static_cast<int>(at - handles.begin());
  for (const auto& handle : handles) wanted.global_ranks.push_back(global_rank(handle));
  return wanted;
}

WorkPtr over() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<at::Device>{});
  future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
  return c10d::Work::create_from_future(future);
}

}  // namespace

c10d::ReconfigureHandle ProcessGroupMcast::get_reconfigure_handle() const {
  check_here("get_reconfigure_handle");
  return c10::str("mcast:", members_->own_global_rank, ":", members_->number, ":", rank_);
}

WorkPtr ProcessGroupMcast::reconfigure(const c10d::ReconfigureOptions& opts) {
  check_here("reconfigure");
  TORCH_CHECK_VALUE(options_->enable_reconfigure, "reconfigure: group '", name_,
                    "' was made without enable_reconfigure");
  const std::string own = get_reconfigure_handle();
  const Wanted wanted = read_handles(opts, own);
  const std::chrono::milliseconds timeout =
      opts.timeout.value_or(std::chrono::milliseconds(timeout_ms_.load()));
  const WithoutGil nogil;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      c10::str("mcast_reconfigure/", opts.uuid, "/"), store_->clone());
  TORCH_CHECK(
      wanted.rank == 0 ||
          appears(*store, "claimed", later(monotonic_now(), nanos_of_ms(timeout.count()))),
      "reconfigure: rank 0 of the new members (handle '", wanted.first,
      "') has not called reconfigure with number ", opts.uuid, " within ", timeout.count(),
      " ms. Hint: it must be alive, and all members must pass the same handles in the same order");
  const std::vector<uint8_t> claimed = wanted.rank == 0
                                           ? store->compareSet("claimed", {}, bytes_of_text(own))
                                           : store->get("claimed");
  TORCH_CHECK(claimed == bytes_of_text(wanted.first), "reconfigure: number ", opts.uuid,
              " was already used; each reconfigure() of the job needs a number of its own");

  members_->leave();
  rank_ = wanted.rank;
  size_ = static_cast<int>(wanted.global_ranks.size());
  members_->number = opts.uuid;
  options_->global_ranks_in_group = wanted.global_ranks;
  place_ = std::make_shared<const std::string>(members_->place());
  observer_->move_to(rank_, size_, wanted.global_ranks);
  sequence_ = 0;
  messages_ = 0;
  // Completions of the previous members keep theirs. The caller has handled their failures.
  devices_.reset();
  {
    const std::lock_guard lock(mutex_);
    members_->first_failure = std::make_shared<std::atomic<Code>>(Code::kOk);
  }
  members_->make(store, timeout);
  fallbacks_->look_again();
  return over();
}

}  // namespace mcast::pg

#endif  // C10D_BACKEND_HAS_RECONFIGURE
