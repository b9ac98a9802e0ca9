// A block is hashed by runs of whole chunks, each run when its last byte has been sent or placed,
// while it is likely to be in the CPU's caches. The hash covers the output's memory, so it includes
// repairs, staged chunks and the ring's pieces, whichever rank forwarded them. A root sends its
// digest to each receiver directly: a digest forwarded by another rank would prove nothing.
//   Cost: each rank hashes each block once; P - 1 frames per root and operation; 32 bytes of memory
// for each run while the operation is in flight.
#include "collective/source_auth.h"

#include <algorithm>

#include "base/errors.h"
#include "collective/error_text.h"
#include "crypto/hash.h"

namespace mcast {
namespace {

constexpr size_t kLeaf = 64u << 10;        // bytes of a run, approximately
constexpr Nanos kPatience = 500 * kMilli;  // less than an inquiry takes (late_inquiry.cpp)

// Runs consist of whole chunks, so that each chunk belongs to one run.
Chunk leaf_chunks(const Plan& plan) {
  return static_cast<Chunk>(std::max<size_t>(1, kLeaf / plan.chunk));
}

crypto::BlockDigest digest_of(const Plan& plan) {
  return {plan.block, leaf_chunks(plan) * plan.chunk};
}

}  // namespace

void SourceAuth::start(const Operation& op) {
  if (!on()) return;
  Check& check = checks_[op.post.sequence];
  check.blocks.assign(op.plan.roots, {digest_of(op.plan), std::nullopt});
  check.missing = op.plan.roots - (op.stream_of(g_.self) ? 1 : 0);
}

crypto::Digest SourceAuth::digest(const Operation& op, uint32_t stream,
                                  const crypto::BlockDigest& block) const {
  return block.of(
      {g_.params.tag, g_.params.lane, op.post.sequence, op.plan.hash, op.member_of(stream)});
}

// A small operation ends here before its block has been sent; its digest is computed at once, from
// the copy that is kept for repair.
void SourceAuth::on_sent(const Operation& op, uint64_t end) {
  if (!on()) return;
  const ConstBytes block = op.source(*op.own.stream);
  if (op.plan.small && op.own.sender) {
    crypto::BlockDigest whole = digest_of(op.plan);
    whole.extend(end, block);
    return send(op, whole);
  }
  crypto::BlockDigest& own = checks_.at(op.post.sequence).blocks[*op.own.stream].here;
  if (own.complete()) return;
  own.extend(end, block);
  if (own.complete()) send(op, own);
}

void SourceAuth::send(const Operation& op, const crypto::BlockDigest& block) {
  const crypto::Digest sent = digest(op, *op.own.stream, block);
  for (uint32_t i = 1; i < g_.size; i++) {
    const auto to = static_cast<Member>((g_.self + i) % g_.size);
    g_.send_frame(to, Channel::kControl, wire::FrameType::kBlockDigest, op.post.sequence,
                  op.plan.hash, sent);
  }
}

void SourceAuth::on_chunk(const Operation& op, uint32_t stream, Chunk chunk) {
  if (!on()) return;
  const Chunk run = leaf_chunks(op.plan), leaf = chunk / run;
  const Chunk end = std::min(op.plan.chunks, (leaf + 1) * run);
  if (op.receivers[stream].bitmap().next_clear(leaf * run, end) < end) return;
  Check& check = checks_.at(op.post.sequence);
  check.blocks[stream].here.add(leaf, op.source(stream));
  compare(op, check, stream);
}

void SourceAuth::on_bytes(const Operation& op, uint32_t stream, uint64_t end) {
  if (!on()) return;
  Check& check = checks_.at(op.post.sequence);
  check.blocks[stream].here.extend(end, op.source(stream));
  compare(op, check, stream);
}

void SourceAuth::on_digest(const Operation& op, const Frame& header, ConstBytes body) {
  const auto check = checks_.find(op.post.sequence);
  const auto stream = op.stream_of(header.member);
  crypto::Digest sent;
  if (check == checks_.end() || !stream || !wire::parse_block_digest(body, sent) ||
      check->second.blocks[*stream].sent) {
    return g_.counters.add(Counter::malformed);
  }
  check->second.blocks[*stream].sent = sent;
  compare(op, check->second, *stream);
}

void SourceAuth::compare(const Operation& op, Check& check, uint32_t stream) {
  const Block& block = check.blocks[stream];
  if (!block.here.complete() || !block.sent) return;
  const Member root = op.member_of(stream);
  if (!crypto::same(digest(op, stream, block.here), *block.sent)) {
    g_.counters.add(Counter::blocks_forged);
    return g_.fail(
        Status(Code::kMismatch,
               error_text<ErrorId::block_forged>(root, g_.self, op.post.sequence,
                                                 op.plan.descriptor.to_string(), g_.params.name) +
                   "; a rank with the group's keys has forged it, or the tensor was written during "
                   "the operation: do not use the results, look at the hosts of all ranks, and "
                   "start again with another secret"),
        kNoMember);
  }
  g_.counters.add(Counter::blocks_verified);
  check.missing--;
  g_.may_be_complete(op);
}

bool SourceAuth::verified(const Operation& op) const {
  const auto check = checks_.find(op.post.sequence);
  return check == checks_.end() || check->second.missing == 0;
}

std::vector<Member> SourceAuth::missing(const Operation& op) const {
  std::vector<Member> roots;
  const auto check = checks_.find(op.post.sequence);
  if (check == checks_.end() || op.receiving > 0) return roots;
  for (uint32_t stream = 0; stream < op.plan.roots; stream++) {
    const bool own = op.own.stream == stream;
    if (!own && !check->second.blocks[stream].sent) roots.push_back(op.member_of(stream));
  }
  return roots;
}

bool SourceAuth::fail_without_digest(Sequence sequence) {
  const Operation* const op = g_.find(sequence);
  const std::vector<Member> roots = op == nullptr ? std::vector<Member>() : missing(*op);
  if (roots.empty()) return false;
  g_.fail(Status(Code::kTimeout,
                 error_text<ErrorId::digest_late>(ranks_text(roots), sequence,
                                                  op->plan.descriptor.to_string(), g_.params.name) +
                     "; its data has arrived (source_auth): check whether somebody delays the "
                     "connections of these ranks, or raise the timeout"),
          roots.front());
  return true;
}

void SourceAuth::on_query(Sequence sequence, Nanos now) {
  Operation* const op = g_.find(sequence);
  if (op == nullptr || missing(*op).empty()) return;
  op->deadline = std::min(op->deadline, now + kPatience);
  g_.ops.touch(*op);
}

}  // namespace mcast
