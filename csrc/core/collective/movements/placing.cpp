// The device writes a stream from the post until all of it is here. Then the stream is retired at
// once, so that its slot can be reused, and its memory no longer changes before anybody learns that
// this member is complete. That order matters for other members' memory, too: once all are
// complete, a root's memory is its caller's again, and the device may retransmit changed bytes from
// there.
#include "collective/movements/placing.h"

namespace mcast {

void Placing::start(const Operation& op) {
  Placer* const placer = g_.port.placer();
  if (placer == nullptr || op.post.landing) return;
  for (uint32_t stream = 0; stream < op.receivers.size(); stream++) {
    if (op.receivers[stream].complete()) continue;
    const Member root = op.member_of(stream);
    PlacedStream slice;
    slice.name = name(op.post.sequence, root);
    slice.header.lane = g_.params.lane;
    slice.header.in_order = op.plan.small;
    slice.header.group_tag = g_.params.tag;
    slice.header.sequence = op.post.sequence;
    slice.header.descriptor = op.plan.hash;
    slice.header.member = root;
    slice.memory = op.post.outputs[stream];
    slice.chunk = op.plan.chunk;
    if (placer->place(slice)) open_[op.post.sequence].roots.insert(root);
  }
}

void Placing::retire(Sequence sequence, Member root) {
  const auto it = open_.find(sequence);
  if (it == open_.end() || it->second.roots.count(root) == 0) return;
  if (g_.port.placer()->retire(name(sequence, root))) forget(sequence, root);
}

void Placing::on_retired(const SliceName& slice) {
  forget(slice.sequence, slice.member);
  if (Operation* const op = g_.find(slice.sequence)) {
    g_.ops.touch(*op);
    g_.may_be_complete(*op);
  }
}

void Placing::forget(Sequence sequence, Member root) {
  const auto it = open_.find(sequence);
  if (it == open_.end() || it->second.roots.erase(root) == 0 || !it->second.roots.empty()) return;
  if (auto& held = it->second.held; held && held->first.done) {
    g_.ended.emplace_back(std::move(held->first.done), std::move(held->second));
  }
  open_.erase(it);
}

bool Placing::hold(Post& post, const Status& status) {
  if (open_.empty()) return false;
  const auto it = open_.find(post.sequence);
  if (it == open_.end()) return false;
  const Sequence sequence = post.sequence;
  for (const Member root : std::set<Member>(it->second.roots)) retire(sequence, root);
  if (open_.count(sequence) == 0) return false;
  it->second.held.emplace(std::move(post), status);
  return true;
}

void Placing::abandon() {
  while (!open_.empty()) {
    const Sequence sequence = open_.begin()->first;
    const Member root = *open_.begin()->second.roots.begin();
    g_.port.placer()->revoke(name(sequence, root));
    forget(sequence, root);
  }
}

}  // namespace mcast
