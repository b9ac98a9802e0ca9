// Passes calls that the engine does not serve to the fallback of the tensors' device.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend.h"
#include "background.h"
#include "gil.h"
#include "members.h"

namespace mcast::pg {
namespace {

bool is_gloo(const c10d::Backend& backend) { return backend.getBackendName() == "gloo"; }

// Returns why the group has failed; empty if it has not, or it is gone.
std::string failure_of(const std::weak_ptr<Group>& group) {
  auto live = group.lock();
  if (!live) return "";
  std::string failure = live->stats().failure;
  // Releasing the last reference to a group waits for its end: not on the thread that calls this.
  if (live.use_count() == 1) {
    Background::instance().run(
        "the end of a group", [last = std::move(live)] {}, true);
  }
  return failure;
}

// Makes the fallback's call; a call that raises ends the work immediately.
WorkPtr called(const std::function<WorkPtr(c10d::Backend&)>& call, c10d::Backend& backend,
               const std::shared_ptr<Observer::Flight>& flight) {
  try {
    return call(backend);
  } catch (...) {
    if (flight) {
      flight->end(false);
      flight->tell();
    }
    throw;
  }
}

// Text that says why a guarded group has no fallback, and how to get one.
std::string way_out(const std::string& mode) {
  if (mode == "off") return "";
  return c10::str("; it runs with security=", mode,
                  ": fallback=gloo sends unencrypted, unless GLOO_DEVICE_TRANSPORT=TCP_TLS is set");
}

}  // namespace

WorkPtr ProcessGroupMcast::passed(Op op, c10d::OpType type, const at::Tensor& tensor,
                                  const FallbackCall& call) {
  check_here(op_name(op));
  const WithoutGil nogil;
  if (!tensor.device().is_cpu()) check_untainted(op_name(op), tensor.device());
  devices_.note(tensor.device());
  const BackendPtr backend = fallbacks_->get(tensor.device().type());
  if (!backend) {
    C10_THROW_ERROR(NotImplementedError,
                    c10::str("mcast: ", op_name(op), " of ", tensor.device(),
                             " tensors is not served by the multicast engine, and group '", name_,
                             "' has no fallback backend for that device (Options(fallback=...))",
                             way_out(config_.security)));
  }
  observer_->calls().fallback(op);
  const uint64_t sequence = point_to_point(op) ? ++messages_ : ++sequence_;
  const bool batched = coalescing_.touch(backend);
  const bool follows = is_gloo(*backend);  // other backends report to the recorder themselves
  std::shared_ptr<Observer::Flight> flight;
  if (follows) {
    Told told;
    told.op = op;
    told.type = type;
    told.sequence = sequence;
    std::vector<std::vector<at::Tensor>> received;
    if (op == Op::scatter) {
      received.push_back({tensor});
    } else {
      told.inputs = tensor;
    }
    told.outputs = received;
    told.timeout = std::chrono::milliseconds(timeout_ms_.load());
    flight = observer_->begin(told, pg_desc_);
  }
  WorkPtr work = called(call, *backend, flight);
  if (batched) return work;
  if (work && follows) {
    FallbackWork::Description description;
    description.rank = rank_;
    description.type = type;
    description.sequence = sequence;
    description.context = context(op_name(op), sequence);
    {
      std::lock_guard lock(mutex_);
      description.group_failure = [group = std::weak_ptr(group_)] { return failure_of(group); };
    }
    description.flight = std::move(flight);
    description.failed = [first = members_->failure()] {
      Code none = Code::kOk;
      if (first->compare_exchange_strong(none, Code::kUnavailable)) FlightRecorder::failed();
    };
    auto followed = c10::make_intrusive<FallbackWork>(std::move(work), std::move(description));
    followed->follow();
    fallbacks_->works().add(followed);
    work = std::move(followed);
  }
  coalescing_.add(work);
  return work;
}

void ProcessGroupMcast::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  observer_->set_hook(std::move(hook));
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {
  };  // c10d checks whether it is set
}

void ProcessGroupMcast::waitForPendingWorks() {
  const WithoutGil nogil;
  observer_->wait_idle();
}

WorkPtr ProcessGroupMcast::endCoalescing() {
  const WithoutGil nogil;
  return coalescing_.end(rank_);
}

c10::intrusive_ptr<c10d::Store> ProcessGroupMcast::fallback_store() const {
  return c10::make_intrusive<c10d::PrefixStore>("mcast_fallback/" + members_->incarnation, store_);
}

WorkPtr ProcessGroupMcast::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  constexpr Op op = Op::all_reduce_sparse;
  return passed(op, c10d::OpType::_ALLREDUCE_SPARSE, first_of(op_name(op), tensors),
                [&](c10d::Backend& backend) {
                  // Gloo takes sparse tensors in its ordinary allreduce.
                  return is_gloo(backend) ? backend.allreduce(tensors, opts)
                                          : backend.allreduce_sparse(tensors, opts);
                });
}

}  // namespace mcast::pg
