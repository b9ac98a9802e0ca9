// Operations on device tensors. The engine is given pinned memory (device_copies.h), with the
// readable end at 0, before anything is enqueued on the device: an operation that the group refuses
// must not write to outputs. From then on the operation has its place in the group's order,
// whenever its source gets here.
#include "backend.h"
#include "base/clock.h"
#include "members.h"

namespace mcast::pg {
namespace {

Result<Sequence> post_transfer(Group& group, const Transfer& transfer, DeviceCopies::Slices slices,
                               PostOptions options) {
  std::vector<Slice>&inputs = slices.inputs, &outputs = slices.outputs;
  switch (transfer.kind) {
    case Transfer::Kind::gather:
      return group.post_allgather(std::move(inputs[0]), std::move(outputs), std::move(options));
    case Transfer::Kind::scatter:
      return group.post_reduce_scatter(std::move(inputs), std::move(outputs[0]), transfer.how,
                                       std::move(options));
    case Transfer::Kind::all_reduce:
      return group.post_allreduce(std::move(inputs[0]), std::move(outputs[0]), transfer.how,
                                  std::move(options));
    case Transfer::Kind::reduce:
      return group.post_reduce(std::move(inputs[0]), std::move(outputs[0]), transfer.root,
                               transfer.how, std::move(options));
    default:
      return group.post_broadcast(std::move(outputs[0]), transfer.root, std::move(options));
  }
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
                                       std::vector<Transfer> transfers, Tensors inputs,
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
    const Transfer& transfer = copies->transfers()[i];
    bytes += transfer.block * (transfer.gather() ? transfer.targets.size() : 1);
    PostOptions options = post_options(op, *work, {timeout}, transfer.dtype);
    copies->hook(i, *work, options);
    auto posted = post_transfer(*engine_group, transfer, copies->slices(i), std::move(options));
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
