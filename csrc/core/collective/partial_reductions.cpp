// Each rank handles its call and member 0's question on one thread, in one order. If the question
// arrives first, the rank replies yes and never contributes; otherwise it replies no. So the mask
// of excused ranks, made of the yes replies, names exactly the ranks whose inputs no fold has or
// will ever have. Every rank and station can apply it at any time: no segment that lacks these
// inputs can have been folded before. Member 0 makes the mask once per operation, when all ranks
// have replied (a silent rank fails the group).
//   1. A rank whose oldest operation has waited too long informs member 0, which asks down the
//      tree.
//   2. Every rank replies to member 0. A late rank posts a stand-in: the same operation, in place
//      in scratch memory, whose input is never read.
//   3. The mask goes down the tree; each rank passes it to the stations that fold for it
//      (aggregation/fold/job.cpp). Folds continue without the excused ranks; AVG divides by the
//      number of ranks that are left.
// Cost: three trips through the tree for an operation that waits; none for others.
#include "collective/partial_reductions.h"

#include <algorithm>
#include <cstring>

#include "base/reduce_kernels.h"
#include "collective/error_text.h"

namespace mcast {
namespace {

// The memory is not initialized: the stand-in writes all of it before it is read.
Slice scratch_of(size_t bytes) {
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
  return {std::make_shared<Region>(memory.get(), bytes, memory), 0, bytes};
}

}  // namespace

// Reductions that owners fold, with a contribution of each rank.
bool PartialReductions::served(const wire::Descriptor& d) const {
  if (g_.params.partial == 0 || !g_.reductions.hosts.flat() || d.bytes == 0) return false;
  if (!g_.params.agreed.racks.flat()) return false;
  if (d.kind != wire::Kind::kAllreduce && d.kind != wire::Kind::kReduceScatter) return false;
  if (!reducible(d.element, d.reduction)) return false;
  const size_t each = element_size(static_cast<Element>(d.element));
  if (d.bytes % each != 0 || d.bytes > max_block(g_.params.agreed)) return false;
  const ReduceWay way = make_plan(d, g_.params.agreed, each).reduce.way;
  return way == ReduceWay::kScatter || way == ReduceWay::kGather;
}

const Operation* PartialReductions::oldest_incomplete() {
  Sequence& s = waits_.complete;
  for (s = std::max(s, g_.ops.base()); s < g_.ops.next(); s++) {
    const Operation* const op = g_.ops.find(s);
    if (op != nullptr && !op->local_complete && !op->finished) return op;
  }
  return nullptr;
}

// The wait counts from the moment when all earlier operations are complete here: before, a rank
// that was late for those has not had the time to make this call.
void PartialReductions::drive(Nanos now) {
  if (g_.params.partial == 0) return;
  const Operation* const op = oldest_incomplete();
  if (op == nullptr) {
    waits_.oldest.reset();
    waits_.asks = kNever;
  } else if (waits_.oldest != op->post.sequence) {
    waits_.oldest = op->post.sequence;
    const bool called = op->reduce && !op->reduce->excused();
    waits_.asks = called && served(op->post.descriptor) ? now + g_.params.partial : kNever;
  } else if (op->reduce && op->reduce->partial) {
    waits_.asks = kNever;
  } else if (now >= waits_.asks) {
    waits_.asks = now + g_.params.partial;  // retry: member 0 may be busy with another inquiry
    ask(*op, now);
  }
}

void PartialReductions::ask(const Operation& op, Nanos now) {
  if (g_.tree.is_top(g_.self)) {
    (void)begin(op.post.sequence, op.post.descriptor, now);  // it has been posted here
    return;
  }
  wire::Writer body;
  wire::put_descriptor(body, op.post.descriptor);
  g_.send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kExcuse, op.post.sequence,
                op.plan.hash, body.bytes());
}

std::optional<Post> PartialReductions::on_excuse(const Frame& header, ConstBytes body, Nanos now) {
  wire::Descriptor descriptor;
  const bool top = g_.tree.is_top(g_.self);
  if ((!top && !g_.from_parent(header.member)) || !wire::parse_descriptor(body, descriptor) ||
      descriptor.hash() != header.argument || !served(descriptor)) {
    g_.counters.add(Counter::malformed);
    return std::nullopt;
  }
  if (top) return begin(header.sequence, descriptor, now);
  g_.send_to_children(wire::FrameType::kExcuse, header.sequence, header.argument, body);
  return answer(header.sequence, descriptor, now);
}

std::optional<Post> PartialReductions::begin(Sequence sequence, const wire::Descriptor& descriptor,
                                             Nanos now) {
  if (inquiry_.open || sequence < std::max(inquiry_.next, g_.ops.base())) return std::nullopt;
  inquiry_.open = true;
  inquiry_.sequence = sequence;
  inquiry_.next = sequence + 1;
  inquiry_.hash = descriptor.hash();
  inquiry_.missing = g_.size;
  inquiry_.answered.assign(g_.size, false);
  inquiry_.partial = {static_cast<uint16_t>(g_.size), std::vector<uint64_t>((g_.size + 63) / 64)};
  wire::Writer body;
  wire::put_descriptor(body, descriptor);
  g_.send_to_children(wire::FrameType::kExcuse, sequence, inquiry_.hash, body.bytes());
  return answer(sequence, descriptor, now);
}

// Yes is final: the stand-in is the rank's part in the operation.
std::optional<Post> PartialReductions::answer(Sequence sequence, const wire::Descriptor& descriptor,
                                              Nanos now) {
  const bool excused =
      sequence == g_.next_sequence() && memory_ + descriptor.bytes <= g_.params.partial_memory;
  if (g_.tree.is_top(g_.self)) {
    on_answer(g_.self, excused, now);
  } else {
    g_.send_frame(Tree::kTop, Channel::kControl, wire::FrameType::kExcused, sequence,
                  excused ? 1 : 0);
  }
  if (!excused) return std::nullopt;
  return stand_in(sequence, descriptor, now);
}

Post PartialReductions::stand_in(Sequence sequence, const wire::Descriptor& descriptor, Nanos now) {
  StandIn& standing = stand_ins_[sequence];
  standing.descriptor = descriptor;
  standing.result = scratch_of(descriptor.bytes);
  memory_ += descriptor.bytes;
  const bool scatter = descriptor.kind == wire::Kind::kReduceScatter;
  ReduceArgs args;
  args.element = static_cast<Element>(descriptor.element);
  args.reduction = static_cast<Reduction>(descriptor.reduction);
  args.inputs.assign(scatter ? g_.size : 1, standing.result);
  args.output = standing.result;
  args.excused = true;
  Post post;
  post.sequence = sequence;
  post.descriptor = descriptor;
  post.posted = now;
  post.reduce = std::move(args);
  post.done = [this, sequence](const Status& status) { stand_ins_.at(sequence).over = status; };
  return post;
}

void PartialReductions::on_excused(const Frame& header, Nanos now) {
  if (!g_.tree.is_top(g_.self) || header.argument > 1) {
    return g_.counters.add(Counter::malformed);
  }
  if (!inquiry_.open || header.sequence != inquiry_.sequence || inquiry_.answered[header.member]) {
    return g_.counters.add(Counter::stale);
  }
  on_answer(header.member, header.argument == 1, now);
}

void PartialReductions::on_answer(Member from, bool excused, Nanos now) {
  inquiry_.answered[from] = true;
  if (excused) {
    inquiry_.partial.contributors--;
    inquiry_.partial.excused[from / 64] |= uint64_t{1} << from % 64;
  }
  if (--inquiry_.missing > 0) return;
  inquiry_.open = false;
  if (inquiry_.partial.contributors == g_.size) return;  // all have made the call by now
  wire::Writer body;
  wire::put_partial(body, inquiry_.partial);
  g_.send_to_children(wire::FrameType::kPartial, inquiry_.sequence, inquiry_.hash, body.bytes());
  apply(inquiry_.sequence, inquiry_.partial, now);
}

void PartialReductions::on_partial(const Frame& header, ConstBytes body, Nanos now) {
  wire::PartialResult partial;
  const Operation* const op = g_.find(header.sequence);
  if (!g_.from_parent(header.member) || !wire::parse_partial(body, partial) ||
      !partial.fits(g_.size) || op == nullptr || op->plan.hash != header.argument) {
    return g_.counters.add(Counter::malformed);
  }
  g_.send_to_children(wire::FrameType::kPartial, header.sequence, header.argument, body);
  apply(header.sequence, partial, now);
}

void PartialReductions::apply(Sequence sequence, const wire::PartialResult& partial, Nanos now) {
  Operation* const op = g_.find(sequence);
  if (op == nullptr || !op->reduce || !op->reduce->owner || op->reduce->partial ||
      op->reduce->excused() != partial.is_excused(g_.self)) {
    return g_.counters.add(Counter::malformed);
  }
  if (const auto standing = stand_ins_.find(sequence); standing != stand_ins_.end()) {
    standing->second.contributors = partial.contributors;
  }
  note(*op, partial, now);
  reductions_.excuse(*op, partial);
  if (g_.fold != nullptr) g_.fold->tell_partial(*op);
}

void PartialReductions::note(const Operation& op, const wire::PartialResult& partial, Nanos now) {
  const bool excused = partial.is_excused(g_.self);
  report_.operations++;
  report_.excused += excused ? 1 : 0;
  report_.last = {op.post.sequence, partial.ranks(), partial.contributors};
  g_.counters.add(Counter::partial_results);
  if ((!g_.tree.is_top(g_.self) && !excused) || !warnings_.allow(now)) return;
  const wire::Descriptor& d = op.post.descriptor;
  log(LogLevel::kWarn, "group '%s': %s (sequence %u) ends without the input of rank(s) %s",
      g_.params.name.c_str(), d.name.empty() ? wire::kind_name(d.kind) : d.name.c_str(),
      unsigned{op.post.sequence}, ranks_text(partial.ranks()).c_str());
}

void PartialReductions::adopt(Post call) {
  StandIn& standing = stand_ins_.at(call.sequence);
  if (!call.descriptor.same(standing.descriptor)) {
    g_.fail(differs(call.sequence, g_.self, call.descriptor.to_string(), Tree::kTop,
                    standing.descriptor.to_string()),
            g_.self);
  }
  standing.call = std::move(call);
}

// A call ends only when its input is no longer written either: a device may still be copying it.
void PartialReductions::collect() {
  for (auto at = stand_ins_.begin(); at != stand_ins_.end();) {
    StandIn& standing = at->second;
    const bool failed = standing.over && (!standing.over->ok() || g_.failed());
    if (!standing.call || !standing.over ||
        (!failed && !standing.call->reduce->inputs_readable())) {
      at++;
      continue;
    }
    Status status = failed && standing.over->ok() ? g_.failure() : *standing.over;
    if (!failed) hand_over(standing);
    g_.ended.emplace_back(std::move(standing.call->done), std::move(status));
    memory_ -= standing.descriptor.bytes;
    at = stand_ins_.erase(at);
  }
}

void PartialReductions::hand_over(StandIn& standing) {
  const Post& call = *standing.call;
  std::memcpy(call.reduce->output.data(), standing.result.data(), standing.descriptor.bytes);
  call.note_contributors(standing.contributors);
}

}  // namespace mcast
