// send, recv and recvAnysource: of CPU tensors by the engine where the group carries messages, that
// is between hosts; on one host, and of other devices, by the fallback. All ranks of a group decide
// alike.
#include "backend.h"
#include "gil.h"

namespace mcast::pg {
namespace {

const char* message_title(Op op) {
  switch (op) {
    case Op::send:
      return "mcast:send";
    case Op::recv:
      return "mcast:recv";
    default:
      return "mcast:recvAnysource";
  }
}

}  // namespace

bool ProcessGroupMcast::carries(Op op, const at::Tensor& tensor) const {
  return tensor.device().is_cpu() && group(op_name(op))->carries_messages();
}

WorkPtr ProcessGroupMcast::post_message(Op op, c10d::OpType type, const Tensors& tensors, int peer,
                                        int tag) {
  const char* const name = op_name(op);
  const bool receives = op != Op::send;
  const bool any = op == Op::recv_any_source;
  const at::Tensor& tensor = check_single(name, receives ? "output" : "input", tensors);
  TORCH_CHECK_VALUE(any || (peer >= 0 && peer < size_ && peer != rank_), name,
                    ": expected another rank from 0 to ", size_ - 1, ", got ", peer);
  const WithoutGil nogil;
  const auto engine_group = group(name);
  auto back = std::make_shared<CopyBacks>();
  MessageCall call;
  call.receives = receives;
  call.memory = Regions().slice(receives ? writable(tensor, *back) : readable(tensor));
  call.peer = any ? kNoMember : static_cast<Member>(peer);
  call.tag = static_cast<uint32_t>(tag);
  const std::vector<Tensors> outputs =
      receives ? std::vector<Tensors>{tensors} : std::vector<Tensors>{};
  auto work = make_work(op, type, message_title(op), receives ? Tensors() : tensors, outputs, 1,
                        std::move(back), any ? -1 : peer);
  if (receives) call.source = work->sources();
  const Status posted = engine_group->post_message(
      std::move(call),
      post_options(op, *work, std::chrono::milliseconds(timeout_ms_.load()), tensor.scalar_type()));
  if (!posted.ok()) throw_status(posted, context(name, sequence_));
  return served(op, receives ? tensor.nbytes() : 0, work);
}

WorkPtr ProcessGroupMcast::send(Tensors& tensors, int destination, int tag) {
  constexpr Op op = Op::send;
  if (carries(op, first_of(op_name(op), tensors))) {
    return post_message(op, c10d::OpType::SEND, tensors, destination, tag);
  }
  return passed(
      op, c10d::OpType::SEND, tensors[0],
      [&](c10d::Backend& backend) { return backend.send(tensors, destination, tag); }, destination);
}

WorkPtr ProcessGroupMcast::recv(Tensors& tensors, int source, int tag) {
  constexpr Op op = Op::recv;
  if (carries(op, first_of(op_name(op), tensors))) {
    return post_message(op, c10d::OpType::RECV, tensors, source, tag);
  }
  return passed(
      op, c10d::OpType::RECV, tensors[0],
      [&](c10d::Backend& backend) { return backend.recv(tensors, source, tag); }, source);
}

WorkPtr ProcessGroupMcast::recvAnysource(Tensors& tensors, int tag) {
  constexpr Op op = Op::recv_any_source;
  if (carries(op, first_of(op_name(op), tensors))) {
    return post_message(op, c10d::OpType::RECVANYSOURCE, tensors, -1, tag);
  }
  return passed(op, c10d::OpType::RECVANYSOURCE, tensors[0],
                [&](c10d::Backend& backend) { return backend.recvAnysource(tensors, tag); });
}

}  // namespace mcast::pg
