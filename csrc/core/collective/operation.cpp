// Maps members to streams and back, and finds the memory that a stream's bytes can be read from.
#include "collective/operation.h"

#include <algorithm>

#include "base/streaming_copy.h"

namespace mcast {

std::string describe_failed(const Post& post, const std::string& group, Member self, Nanos now) {
  const std::string& name = post.descriptor.name;
  return (name.empty() ? wire::kind_name(post.descriptor.kind) : name) + " (sequence " +
         std::to_string(post.sequence) + ") of group '" + group + "' failed on rank " +
         std::to_string(self) + " after " + seconds_text(now - post.posted) + " (" +
         (post.timeout == kNever ? "no limit" : "limit " + seconds_text(post.timeout)) + ")";
}

void Post::raise_completed(uint32_t stream, uint64_t before, uint64_t after, uint64_t end) const {
  const size_t step = std::max<size_t>(1, completed_step);
  if (after / step <= before / step && after != end) return;
  streaming_fence();
  on_completed(stream, after);
}

Member Operation::member_of(uint32_t stream) const {
  return plan.one_root() ? plan.descriptor.root : static_cast<Member>(stream);
}

void Operation::start_streams(const ReceiverParams& params) {
  own.stream = stream_of(self);
  receivers.reserve(plan.roots);
  flow.active = ActiveStreams(plan.roots);
  for (uint32_t stream = 0; stream < plan.roots; stream++) {
    receivers.emplace_back(plan.chunks, params);
    if (own.stream == stream) receivers.back().set_all();
  }
  receiving = plan.roots - (own.stream ? 1 : 0);
  if (post.on_completed) final_to.assign(plan.roots, 0);
}

uint64_t Operation::readable() const {
  const Slice& input = post.input;
  if (!input.region || finished) return plan.block;
  const uint64_t ready = input.region->readable();
  return std::min<uint64_t>(plan.block, ready - std::min<uint64_t>(ready, input.offset));
}

void Operation::raise_completed(uint32_t stream, uint64_t before, uint64_t after) const {
  if (reduce && !reduce->lands(stream)) return;
  post.raise_completed(stream, before, after, plan.block);
}

ConstBytes Operation::source(uint32_t stream) const {
  if (own.stream == stream) {
    if (plan.small && own.started) return own.kept;
    return post.input.bytes();
  }
  return post.outputs[stream].bytes();
}

}  // namespace mcast
