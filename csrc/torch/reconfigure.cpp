// reconfigure (torch 2.14): a group whose members come and go, by the rendezvous of an ordinary
// group for each membership.
//   1. Who is a member and in which order, the handles say, which the script has exchanged.
//   2. The new rank 0 claims the number of the membership on the store; the others wait for that.
//   Who
//      finds it taken goes no further, and neither does anybody else.
//   3. Each rank leaves the members before: what all of them have called ends, unless one has
//   failed.
//   4. They make a group on keys of that number, as in a constructor.
// A handle is "mcast:GLOBAL:MEMBERSHIP:RANK": the global rank stays a process's own for good.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <variant>

#include "gil.h"
#include "members.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace mcast::pg {
namespace {

using Handles = std::vector<c10d::ReconfigureHandle>;

// Its global rank.
uint64_t global_rank(const c10d::ReconfigureHandle& handle) {
  unsigned long long global = 0;
  long long membership = 0;
  int rank = 0, end = 0;
  const bool sound =
      std::sscanf(handle.c_str(), "mcast:%llu:%lld:%d%n", &global, &membership, &rank, &end) == 3 &&
      static_cast<size_t>(end) == handle.size();
  TORCH_CHECK_VALUE(sound, "reconfigure: '", handle, "' is no handle of an mcast group");
  return global;
}

// As they were given; of a set, in the order of the global ranks.
Handles in_order(const c10d::ReconfigureOptions& opts) {
  Handles handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, opts.handles);
  TORCH_CHECK_VALUE(!handles.empty(), "reconfigure: expected at least one handle");
  for (const auto& handle : handles) (void)global_rank(handle);
  const auto before = [](const auto& a, const auto& b) { return global_rank(a) < global_rank(b); };
  Handles sorted = handles;
  std::sort(sorted.begin(), sorted.end(), before);
  const auto twice = std::adjacent_find(
      sorted.begin(), sorted.end(),
      [](const auto& a, const auto& b) { return global_rank(a) == global_rank(b); });
  TORCH_CHECK_VALUE(twice == sorted.end(), "reconfigure: two handles of global rank ",
                    twice == sorted.end() ? 0 : global_rank(*twice));
  return std::holds_alternative<Handles>(opts.handles) ? handles : sorted;
}

std::vector<uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

// Who is to be a member, by new rank.
struct Wanted {
  std::vector<uint64_t> global_ranks;
  std::string first;  // handle of rank 0
  int rank = 0;       // of `own`
};

Wanted read_handles(const c10d::ReconfigureOptions& opts, const c10d::ReconfigureHandle& own) {
  TORCH_CHECK_VALUE(opts.uuid >= 0, "reconfigure: expected a number of 0 or more, got ", opts.uuid);
  const Handles handles = in_order(opts);
  const auto at = std::find(handles.begin(), handles.end(), own);
  TORCH_CHECK_VALUE(at != handles.end(), "reconfigure: the handle of this rank, '", own,
                    "', is not among the ", handles.size(),
                    " given: exchange those of now, each reconfigure() changes them");
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
  if (wanted.rank > 0) store->wait({"claimed"}, timeout);
  const std::vector<uint8_t> claimed =
      wanted.rank == 0 ? store->compareSet("claimed", {}, as_bytes(own)) : store->get("claimed");
  TORCH_CHECK(claimed == as_bytes(wanted.first), "reconfigure: number ", opts.uuid,
              " was already used; each reconfigure() of the job needs a number of its own");

  members_->leave();
  rank_ = wanted.rank;
  size_ = static_cast<int>(wanted.global_ranks.size());
  members_->number = opts.uuid;
  options_->global_ranks_in_group = wanted.global_ranks;
  place_ = std::make_shared<const std::string>(members_->place());
  observer_->move_to(rank_, size_, wanted.global_ranks);
  sequence_ = 0;
  // Completions of the members before keep theirs.
  first_failure_ = std::make_shared<std::atomic<Code>>(Code::kOk);
  members_->make(store, timeout);
  return over();
}

}  // namespace mcast::pg

#endif  // C10D_BACKEND_HAS_RECONFIGURE
