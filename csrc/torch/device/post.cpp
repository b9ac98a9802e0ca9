// Operations on device tensors. The engine is given pinned memory (device_copies.h), with the
// readable end at 0, before anything is enqueued on the device: an operation that the group refuses
// must not write to outputs. From then on the operation has its place in the group's order,
// whenever its source gets here.
#include "backend.h"
#include "base/clock.h"
#include "members.h"

namespace mcast::pg {
namespace {

Request request_of(const DevicePlan& transfer, DeviceCopies::Slices slices, Member rank) {
  Request request{transfer.request_kind(), std::move(slices.inputs), std::move(slices.outputs),
                  transfer.root, transfer.how};
  const bool root = transfer.root == rank;
  // (A broadcast's slice is its input and its output.)
  if (transfer.kind == DevicePlan::Kind::broadcast)
    (root ? request.outputs : request.inputs).clear();
  if (transfer.kind == DevicePlan::Kind::reduce && !root) request.outputs.clear();
  return request;
}

}  // namespace

// Before the operation has its place in the group's order: what throws here has posted nothing.
std::shared_ptr<PinnedBuffer> ProcessGroupMcast::pinned(Op op, size_t bytes, Nanos limit) {
  const Nanos start = monotonic_now();
  const size_t budget = config_.device_pinned;
  return pinned_for_collective(bytes, budget, [&](size_t held) {
    check_signals();
    const Nanos passed = monotonic_now() - start;
    if (passed >= limit) {
      C10_THROW_ERROR(
          DistBackendError,
          c10::str(context(op_name(op), sequence_ + 1), ": waited ", passed / kMilli, " ms (limit ",
                   limit / kMilli, " ms) for ", bytes,
                   " bytes of pinned memory: earlier collectives on device tensors of this process "
                   "hold ",
                   held, " bytes (setting device_pinned: ", budget,
                   "). Hint: they wait for other ranks, or for a stream of this rank that does not "
                   "go on; torch_mcast.flight_recorder() lists them."));
    }
    return members_->failure()->load() == Code::kOk;
  });
}

WorkPtr ProcessGroupMcast::post_device(Op op, c10d::OpType type, const char* title,
                                       std::vector<DevicePlan> transfers, Tensors inputs,
                                       std::vector<Tensors> outputs,
                                       std::shared_ptr<CopyBacks> back,
                                       std::chrono::milliseconds timeout) {
  const auto engine_group = group(op_name(op));
  const c10::Device device = inputs[0].device();
  const SideStreams streams = devices_.streams(device, transfers[0].reduces(), *engine_group);
  const std::shared_ptr<CopyBacks> divided = back;
  const auto copies =
      DeviceCopies::make(std::move(transfers), std::move(back), rank_, streams, devices_.policy(),
                         [&](size_t bytes) { return pinned(op, bytes, limit(timeout)); });
  const size_t count = copies->transfers().size();
  auto work = make_work(op, type, title, std::move(inputs), std::move(outputs),
                        static_cast<int>(count) + 1, nullptr);
  if (divided) divided->divide_by(work->contributors());
  work->set_copies(copies);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const DevicePlan& transfer = copies->transfers()[i];
    bytes += transfer.block * (transfer.gather() ? transfer.targets.size() : 1);
    PostOptions options = post_options(op, *work, {timeout}, transfer.dtype);
    copies->hook(i, *work, options);
    auto posted = engine_group->post(request_of(transfer, copies->slices(i), engine_group->rank()),
                                     std::move(options));
    if (!posted.ok()) {
      // Earlier ones wait for sources that now never come.
      if (i > 0) engine_group->abort("a part of a coalesced operation was refused");
      throw_status(posted.status(), context(op_name(op), sequence_));
    }
  }
  copies->launch(DeviceCopies::Listener::of(work, engine_group));
  devices_.add(work);
  devices_.note(device);
  return served(op, bytes, work);
}

}  // namespace mcast::pg
