// A barrier that names missing ranks, through the store: it needs no network between ranks, so it
// also reports ranks that cannot be reached, or have never called anything. Every rank but 0 sets
// its mark; rank 0 checks the marks in the order of ranks, then publishes the result, for which the
// others wait. A guarded group does not rely on the store alone, since any process that can write
// to it could let a rank pass: if the store says that all are here, a barrier of the group follows,
// and the marks only name missing ranks. torch calls it under Gloo's name only; scripts look for
// its texts.
#include <algorithm>

#include "backend.h"
#include "base/clock.h"
#include "gil.h"
#include "members.h"
#include "store.h"

namespace mcast::pg {
namespace {

constexpr const char* kVerdict = "verdict";
constexpr const char* kAllHere = "all here";

// For a rank that is failing already: if the store does not work either, the first error counts.
void leave_verdict(c10d::Store& store, const std::string& prefix, const char* verdict) noexcept {
  try {
    store.set(prefix + kVerdict, bytes_of_text(verdict));
  } catch (const std::exception&) {
    return;
  }
}

Nanos deadline_of(std::chrono::milliseconds limit) {
  return later(monotonic_now(), nanos_of_ms(std::max<int64_t>(0, limit.count())));
}

// All ranks reach this point, or none, unless a rank is deceived.
void prove_all_here(ProcessGroupMcast& group, Nanos deadline) {
  if (group.config().security == "off" || group.getSize() == 1) return;
  c10d::BarrierOptions opts;
  opts.timeout =
      std::chrono::milliseconds(std::max<Nanos>(kMilli, deadline - monotonic_now()) / kMilli);
  group.barrier(opts)->wait();
}

}  // namespace

void ProcessGroupMcast::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  constexpr Op op = Op::monitored_barrier;
  check_here(op_name(op));
  const WithoutGil nogil;
  const uint64_t sequence = ++sequence_;
  observer_->calls().engine(op, 0);
  const auto limit = opts.timeout != c10d::kUnsetTimeout
                         ? opts.timeout
                         : std::chrono::milliseconds(timeout_ms_.load());
  const Nanos deadline = deadline_of(limit);
  const std::string prefix =
      "mcast_monitored/" + members_->incarnation + std::to_string(sequence) + "/";
  if (rank_ != 0) {
    store_->set(prefix + std::to_string(rank_), bytes_of_text("here"));
    std::string verdict = "no report from rank 0";
    if (appears(*store_, prefix + kVerdict, deadline)) {
      const auto value = store_->get(prefix + kVerdict);
      verdict.assign(value.begin(), value.end());
    }
    if (verdict == kAllHere) return prove_all_here(*this, deadline);
    C10_THROW_ERROR(DistBackendError,
                    c10::str(context(op_name(op), sequence), ": Rank ", rank_,
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0: ",
                             verdict));
  }
  std::vector<int> missing;
  try {
    for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
      if (!appears(*store_, prefix + std::to_string(rank), deadline)) missing.push_back(rank);
    }
  } catch (...) {
    // Without a result, ranks that come later would wait until their limit.
    leave_verdict(*store_, prefix, "Rank 0 was interrupted in monitoredBarrier");
    throw;
  }
  std::string verdict = kAllHere;
  if (limit.count() <= 0) {
    missing.assign(1, 0);
    verdict = c10::str("Rank 0 timed out in monitoredBarrier after ", limit.count(), " ms");
  } else if (!missing.empty()) {
    verdict = c10::str(missing.size() > 1 ? "Ranks " : "Rank ", c10::Join(", ", missing),
                       " failed to pass monitoredBarrier in ", limit.count(), " ms");
  }
  store_->set(prefix + kVerdict, bytes_of_text(verdict));
  if (!missing.empty()) {
    C10_THROW_ERROR(DistBackendError, context(op_name(op), sequence) + ": " + verdict);
  }
  prove_all_here(*this, deadline);
}

}  // namespace mcast::pg
