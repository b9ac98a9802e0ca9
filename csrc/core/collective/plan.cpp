// Receive memory determines the plan. Half of the smallest receive budget of the group is for
// windows, a quarter for eager data. The number of roots of an allgather that send at once is
// limited: each needs a window of two batches out of that memory and of what a switch port can be
// trusted to queue. A root does not receive its own block, so M roots at once fill (M - 1) / M of
// every receiver's link, and all of them fill it completely. Other roots take turns in M chains.
// Data that a path itself holds adds to what may wait in its queue, once it is measured
// (BlockSender), as far as the receive budget allows. The window never falls below what keeps the
// credit loop alive: one report quantum plus one batch; with little memory both shrink.
#include "collective/plan.h"

#include <algorithm>

#include "base/element.h"
#include "base/reduce_kernels.h"
#include "wire/datagram.h"

namespace mcast {
namespace {

Chunk to_chunks(size_t bytes, size_t chunk) {
  return static_cast<Chunk>(std::min<size_t>(bytes / chunk, 0xfffffff0u));
}

// Receive budget that a chunk uses: its datagram, or for a small one the kernel's bookkeeping,
// because a budget allows for bookkeeping at the size of an Ethernet packet only. (Linux 6 charges
// a socket 832 bytes in addition for each datagram; a budget is 5/8 of the buffer.)
size_t queued_bytes(const Agreed& agreed) {
  const size_t datagram = agreed.chunk + wire::kDatagramHeader + agreed.guard;
  return std::max(datagram, (datagram + 832) * 5 / 8);
}

// Number of chunks that a queue of this many bytes holds.
Chunk queued_chunks(size_t bytes, const Agreed& agreed) {
  return to_chunks(bytes, queued_bytes(agreed));
}

// Contributors to a block besides its owner; at least one.
size_t other_contributors(const Agreed& agreed) {
  const size_t all = agreed.contributors != 0 ? agreed.contributors : agreed.members;
  return std::max<size_t>(1, all - 1);
}

// Chooses how the contributions of a reduction travel, and the streams of its multicast half, if
// any.
void plan_reduction(Plan& plan, const Agreed& agreed, size_t element) {
  const wire::Descriptor& d = plan.descriptor;
  ReducePlan& reduce = plan.reduce;
  const size_t members = agreed.members;
  reduce.share = d.bytes;
  reduce.way = ReduceWay::kScatter;
  if (d.kind != wire::Kind::kReduceScatter) {
    reduce.share = block_share(d.bytes, element, members);
    reduce.way = d.kind == wire::Kind::kReduce ? ReduceWay::kToRoot : ReduceWay::kGather;
  }
  const size_t others = other_contributors(agreed), ratio = contribution_ratio(agreed, d);
  reduce.segment = reduce_segment(agreed, d);
  reduce.lookahead = static_cast<uint32_t>(
      std::clamp<size_t>(agreed.incast / (others * reduce.segment * ratio), 2, kMostLookahead));
  reduce.unasked = reduce.share <= std::min(kUnaskedBlock / ratio, reduce.segment);
  plan.large = !reduce.unasked;
  if (reduce.way != ReduceWay::kGather) return;
  plan.roots = agreed.members;
  plan.block = reduce.share;
  // (With a factor per rank, contributions would have to be rounded once more.)
  if (d.bytes > 0 && d.reduction != static_cast<uint8_t>(Reduction::kPremulSum) &&
      d.bytes * members <= std::min(kOneStepBytes, agreed.budget / 4) && d.bytes <= agreed.eager) {
    reduce.way = ReduceWay::kOneStep;
    plan.block = d.bytes;
  }
}

}  // namespace

size_t contribution_segment(const Agreed& agreed) {
  const size_t share = agreed.incast / (2 * other_contributors(agreed));
  return std::clamp<size_t>(share, kMinSegment, kMaxSegment) / 64 * 64;
}

size_t contribution_ratio(const Agreed& agreed, const wire::Descriptor& descriptor) {
  const auto element = static_cast<Element>(descriptor.element);
  const bool hosts = agreed.contributors != 0 && agreed.contributors != agreed.members;
  if (!hosts || !contributes_wide(element, static_cast<Reduction>(descriptor.reduction))) return 1;
  return accumulator_ratio(element);
}

size_t reduce_segment(const Agreed& agreed, const wire::Descriptor& descriptor) {
  const auto element = static_cast<Element>(descriptor.element);
  // A rack's sum is sent in accumulators, and a frame holds kMaxSegment of them.
  const size_t sums = agreed.racks.flat() ? 1 : accumulator_ratio(element);
  const size_t segment = contribution_segment(agreed) / contribution_ratio(agreed, descriptor);
  return std::min(segment, kMaxSegment / sums) / 64 * 64;
}

Plan make_plan(const wire::Descriptor& descriptor, const Agreed& agreed, size_t element) {
  Plan plan;
  plan.descriptor = descriptor;
  plan.hash = descriptor.hash();
  plan.chunk = agreed.chunk;
  if (descriptor.kind == wire::Kind::kBarrier) return plan;
  if (wire::is_exchange(descriptor.kind)) {
    plan.large = descriptor.kind == wire::Kind::kAllToAll || descriptor.bytes > kUnaskedBlock;
    return plan;
  }
  if (wire::is_reduction(descriptor.kind)) {
    plan_reduction(plan, agreed, element);
    if (plan.roots == 0) return plan;
  } else {
    plan.roots = plan.one_root() ? 1 : agreed.members;
    plan.block = descriptor.bytes;
  }
  plan.chunks = static_cast<Chunk>((plan.block + plan.chunk - 1) / plan.chunk);

  const size_t datagram = plan.chunk + wire::kDatagramHeader, queued = queued_bytes(agreed);
  const size_t eager_bytes = std::min(unasked_by_root(agreed.eager, agreed.staging, plan.roots),
                                      agreed.budget / 4 / plan.roots * datagram / queued);
  // The block of an all_reduce in two steps does not exist yet when it is posted, so no copy can be
  // kept.
  plan.small = plan.block <= eager_bytes && plan.reduce.way != ReduceWay::kGather;
  plan.large = !plan.small && plan.block > 0;
  plan.eager = to_chunks(eager_bytes, plan.chunk);

  const size_t pool = std::max<size_t>(agreed.budget / 2, plan.chunk);
  const size_t incast = agreed.port_queue / agreed.share;
  const size_t all = plan.block * plan.roots * queued / datagram;
  if (agreed.chains != 0) {
    plan.chains = std::min(agreed.chains, plan.roots);
  } else if (all <= std::min(pool, incast)) {
    plan.chains = plan.roots;
  } else {
    const size_t roots = std::min(pool, incast) / (2 * agreed.batch);
    plan.chains = static_cast<uint32_t>(std::clamp<size_t>(roots, 1, plan.roots));
  }
  const size_t total = plan.chains > 1 ? std::min(pool, incast) : pool;
  const size_t share = std::max<size_t>(total / std::max(1u, plan.chains), plan.chunk);
  // If roots take turns, the last data of one may still wait in a switch when the next begins:
  // shallow queues must hold twice the windows of all chains together.
  const size_t most = plan.roots > plan.chains ? incast / 2 / plan.chains : incast;
  const size_t wanted = agreed.window != 0 ? agreed.window : std::min(share, most);
  plan.window = std::max(kLeastWindow, queued_chunks(std::min(wanted, share), agreed));
  plan.widest =
      std::max(plan.window, agreed.window != 0 ? 0 : queued_chunks(pool / plan.chains, agreed));
  plan.batch = std::clamp<Chunk>(to_chunks(agreed.batch, plan.chunk), 1,
                                 std::max<Chunk>(1, plan.window / 4));
  plan.quantum = std::max<Chunk>(1, plan.window / 4);
  plan.tolerance = agreed.reorder != 0 ? agreed.reorder
                                       : std::max<Chunk>(1, to_chunks(agreed.batch, plan.chunk));
  // One interface may lag behind the other by the length of its queue.
  if (agreed.stripes > 1 && agreed.reorder == 0) {
    plan.tolerance = std::max(plan.tolerance, plan.window / 2);
  }
  return plan;
}

}  // namespace mcast
