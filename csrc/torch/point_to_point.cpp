// send, recv and recvAnysource: by the engine, but for devices whose fallback sends from there
// (NCCL). All ranks of a group decide alike, by the device of the tensor.
#include "point_to_point.h"

#include "gil.h"

namespace mcast::pg {

const char* ProcessGroupMcast::PointToPoint::title() const {
  switch (op) {
    case Op::send:
      return "mcast:send";
    case Op::recv:
      return "mcast:recv";
    default:
      return "mcast:recvAnysource";
  }
}

WorkPtr ProcessGroupMcast::PointToPoint::run(c10d::OpType type, const Tensors& tensors, int peer,
                                             int tag, const FallbackCall& pass) const {
  const at::Tensor& tensor = first_of(op_name(op), tensors);
  if (pg.fallbacks_->none_on(tensor.device().type())) return post(type, tensors, peer, tag);
  return pg.passed(op, type, tensor, pass);
}

MessageCall ProcessGroupMcast::PointToPoint::call(const at::Tensor& tensor, int peer, int tag,
                                                  CopyBacks& back) const {
  MessageCall call;
  call.receives = op != Op::send;
  call.memory = Regions().slice(call.receives ? writable(tensor, back) : readable(tensor));
  call.peer = op == Op::recv_any_source ? kNoMember : static_cast<Member>(peer);
  call.tag = static_cast<uint32_t>(tag);
  return call;
}

WorkPtr ProcessGroupMcast::PointToPoint::post(c10d::OpType type, const Tensors& tensors, int peer,
                                              int tag) const {
  const char* const name = op_name(op);
  const bool any = op == Op::recv_any_source;
  const at::Tensor& tensor = check_single(name, op == Op::send ? "input" : "output", tensors);
  TORCH_CHECK_VALUE(pg.size_ > 1, name, ": group '", pg.name_, "' has no other rank");
  TORCH_CHECK_VALUE(any || (peer >= 0 && peer < pg.size_ && peer != pg.rank_), name,
                    ": expected another rank from 0 to ", pg.size_ - 1, ", got ", peer);
  const WithoutGil nogil;
  if (!tensor.device().is_cpu()) return post_device(type, tensors, any ? -1 : peer, tag);
  const auto engine_group = pg.group(name);
  auto back = std::make_shared<CopyBacks>();
  MessageCall message = call(tensor, peer, tag, *back);
  const std::vector<Tensors> outputs(message.receives ? 1 : 0, tensors);
  auto work = pg.make_work(op, type, title(), message.receives ? Tensors() : tensors, outputs, 1,
                           std::move(back), peer);
  if (message.receives) message.source = work->sources();
  const std::chrono::milliseconds timeout(pg.timeout_ms_.load());
  const Status posted = engine_group->post_message(
      std::move(message), pg.post_options(op, *work, {timeout}, tensor.scalar_type()));
  if (!posted.ok()) throw_status(posted, pg.context(name, pg.messages_));
  return pg.served(op, op == Op::send ? 0 : tensor.nbytes(), work);
}

WorkPtr ProcessGroupMcast::send(Tensors& tensors, int destination, int tag) {
  return PointToPoint{*this, Op::send}.run(
      c10d::OpType::SEND, tensors, destination, tag,
      [&](c10d::Backend& backend) { return backend.send(tensors, destination, tag); });
}

WorkPtr ProcessGroupMcast::recv(Tensors& tensors, int source, int tag) {
  return PointToPoint{*this, Op::recv}.run(
      c10d::OpType::RECV, tensors, source, tag,
      [&](c10d::Backend& backend) { return backend.recv(tensors, source, tag); });
}

WorkPtr ProcessGroupMcast::recvAnysource(Tensors& tensors, int tag) {
  return PointToPoint{*this, Op::recv_any_source}.run(
      c10d::OpType::RECVANYSOURCE, tensors, -1, tag,
      [&](c10d::Backend& backend) { return backend.recvAnysource(tensors, tag); });
}

}  // namespace mcast::pg
