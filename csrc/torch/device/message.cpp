// send and recv of device tensors. The message is posted at once, with the readable end at 0: so it
// has its place among those of its pair and tag, and a refused call enqueues nothing. Its pieces
// leave as they come to the host. A received message is copied in when all of it is here
// (device_copies.h). Every message has pinned memory of its own: one that waits for its other end
// takes none that another needs.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "point_to_point.h"

namespace mcast::pg {

WorkPtr ProcessGroupMcast::PointToPoint::post_device(c10d::OpType type, const Tensors& tensors,
                                                     int peer, int tag) const {
  const at::Tensor& tensor = tensors[0];
  pg.devices_.check(op, tensor.device());
  const auto engine_group = pg.group(op_name(op));
  const bool receives = op != Op::send;
  const Member other = peer < 0 ? kNoMember : static_cast<Member>(peer);
  auto back = std::make_shared<CopyBacks>();
  std::vector<DevicePlan> transfers;
  transfers.push_back(receives ? plan_receive(tensor, other, *back) : plan_send(tensor, other));
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  SideStreams streams = pg.devices_.streams_of_messages(guard.getStream(tensor.device()));
  if (!receives) streams.in = streams.out;  // nothing comes in
  const auto copies =
      DeviceCopies::make(std::move(transfers), std::move(back), pg.rank_, streams,
                         pg.devices_.policy(), receives ? pinned_buffer : pinned_for_send);
  auto work = pg.make_work(op, type, title(), receives ? Tensors() : tensors,
                           std::vector<Tensors>(receives ? 1 : 0, tensors), 2, nullptr, peer);
  work->set_copies(copies);

  DeviceCopies::Slices slices = copies->slices(0);
  MessageCall call;
  call.receives = receives;
  call.memory = std::move(receives ? slices.outputs[0] : slices.inputs[0]);
  call.peer = other;
  call.tag = static_cast<uint32_t>(tag);
  if (receives) call.source = work->sources();
  const std::chrono::milliseconds timeout(pg.timeout_ms_.load());
  PostOptions options = pg.post_options(op, *work, {timeout}, tensor.scalar_type());
  copies->hook(0, *work, options);
  const Status posted = engine_group->post_message(std::move(call), std::move(options));
  if (!posted.ok()) throw_status(posted, pg.context(op_name(op), pg.messages_));
  copies->launch(DeviceCopies::Listener::of(work, engine_group));
  pg.devices_.note(tensor.device());
  return pg.served(op, receives ? tensor.nbytes() : 0, work);
}

}  // namespace mcast::pg
