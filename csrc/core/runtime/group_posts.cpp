// Posting: checks the arguments, copies this rank's block if it is not in place (on the caller's
// thread, so that the lane never stalls on it), takes the lane's sequence number and pushes the
// post to the lane under one lock, so that sequence order is queue order on every lane. A barrier
// goes to every lane that has had operations since the last barrier. The calls determine these
// lanes, so all ranks agree.
#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/huge_pages.h"
#include "base/reduce_kernels.h"
#include "base/streaming_copy.h"
#include "runtime/group_base.h"

namespace mcast {
namespace {

std::optional<Sequence> awaited(const PostOptions& options, Sequence sequence) {
  return options.waited ? std::optional(sequence) : std::nullopt;
}

// A reduction of one contribution, in pieces: its scratch memory does not grow with the tensor.
void reduce_alone(const ReduceArgs& args, const Slice& input) {
  constexpr size_t kAlonePiece = size_t{64} << 10;  // bytes of accumulators
  const size_t size = element_size(args.element), wide = accumulator_size(args.element);
  const size_t count = input.length / size, most = std::min(count, kAlonePiece / wide);
  std::vector<std::byte> acc(most * wide);
  for (size_t at = 0; at < count; at += most) {
    const size_t piece = std::min(most, count - at);
    fold_first(args.element, args.reduction, args.factor, input.data() + at * size, acc.data(),
               piece);
    fold_finish(args.element, args.reduction, 1, acc.data(), args.output.data() + at * size, piece);
  }
}

}  // namespace

// One call on a group, with each kind's checks.
class GroupBase::Posting {
 public:
  Posting(GroupBase& group, std::string op) : g_(group), op_(std::move(op)) {}

  Status check_shape(const Request& call) const;
  Result<Sequence> broadcast(Request call, PostOptions options);
  Result<Sequence> allgather(Request call, PostOptions options);
  Result<Sequence> reduce_scatter(Request call, PostOptions options);
  Result<Sequence> allreduce(Request call, PostOptions options);
  Result<Sequence> reduce(Request call, PostOptions options);
  Result<Sequence> exchange(Request call, PostOptions options);
  Result<Sequence> barrier(Request call, PostOptions options);

 private:
  // The work of a group of one rank: only a copy.
  using Local = std::function<void()>;
  Result<Sequence> push(Post post, PostOptions options, const Local& local = {});
  Result<Sequence> reduction(wire::Kind kind, Member root, uint64_t bytes, ReduceArgs args,
                             PostOptions options);
  bool collapses(const Slice& slice) const;
  void advise_memory(const Slice& slice) const;
  void advise_memory(const std::vector<Slice>& slices) const;
  Status check_root(Member root) const;
  size_t block_of(const Request& call) const;
  Status check_exchange(const Request& call) const;
  Status check_block(uint64_t bytes) const;

  GroupBase& g_;
  const std::string op_;  // for messages
};

Result<Sequence> GroupBase::post(Request call, PostOptions options) {
  Posting posting(*this, options.label.name.or_else(wire::kind_name(call.kind)));
  if (Status status = posting.check_shape(call); !status.ok()) return status;
  switch (call.kind) {
    case wire::Kind::kBroadcast:
      return posting.broadcast(std::move(call), std::move(options));
    case wire::Kind::kAllgather:
      return posting.allgather(std::move(call), std::move(options));
    case wire::Kind::kBarrier:
      return posting.barrier(std::move(call), std::move(options));
    case wire::Kind::kReduceScatter:
      return posting.reduce_scatter(std::move(call), std::move(options));
    case wire::Kind::kAllreduce:
      return posting.allreduce(std::move(call), std::move(options));
    case wire::Kind::kReduce:
      return posting.reduce(std::move(call), std::move(options));
    case wire::Kind::kAllToAll:
    case wire::Kind::kGather:
    case wire::Kind::kScatter:
      return posting.exchange(std::move(call), std::move(options));
  }
  return Status(Code::kInternal, "");  // all kinds are handled above
}

// The lengths of lists are checked with those of their blocks.
Status GroupBase::Posting::check_shape(const Request& call) const {
  const wire::Kind kind = call.kind;
  const RequestShape wants = shape_of(kind, g_.size_, call.root == g_.rank_);
  const bool lists_in = kind == wire::Kind::kReduceScatter || wire::is_exchange(kind);
  const bool lists_out = kind == wire::Kind::kAllgather || wire::is_exchange(kind);
  if ((lists_in || call.inputs.size() == wants.inputs) &&
      (lists_out || call.outputs.size() == wants.outputs)) {
    return {};
  }
  return Status(Code::kInvalidArgument, op_ + ": " + std::to_string(call.inputs.size()) +
                                            " inputs and " + std::to_string(call.outputs.size()) +
                                            " outputs, not " + std::to_string(wants.inputs) +
                                            " and " + std::to_string(wants.outputs));
}

Status GroupBase::check_sequence(const std::string& op, LaneId lane) const {
  if (state_->next[lane] < kSequences) return {};
  return Status(Code::kResourceExhausted, op + ": group '" + name_ + "' has used all " +
                                              std::to_string(kSequences) +
                                              " sequence numbers; destroy it and make a new one");
}

Result<Sequence> GroupBase::take_turn(LaneId lane, Post post) {
  if (Status status = check_sequence(post.descriptor.name, lane); !status.ok()) return status;
  const Sequence sequence = state_->next[lane]++;
  post.sequence = sequence;
  if (Status status = push(lane, std::move(post)); !status.ok()) return status;
  return sequence;
}

// All numbers are checked before anything is pushed: a barrier on one lane alone would never end.
Result<Sequence> GroupBase::take_both_turns(Post post) {
  for (const LaneId lane : kBothLanes) {
    if (Status status = check_sequence(post.descriptor.name, lane); !status.ok()) return status;
  }
  state_->reduced = false;
  const Sequence sequence = post.sequence = state_->next.multicast++;
  const Sequence reduce_sequence = state_->next.reduce++;
  if (Status status = push_barrier(std::move(post), reduce_sequence); !status.ok()) return status;
  return sequence;
}

Status GroupBase::push_barrier(Post post, Sequence reduce_sequence) {
  post.done = after_both_lanes(std::move(post.done));
  Post on_reduce = post;
  on_reduce.sequence = reduce_sequence;
  on_reduce.moments = nullptr;  // the multicast lane writes them
  if (Status status = push(LaneId::kReduce, std::move(on_reduce)); !status.ok()) return status;
  return push(LaneId::kMulticast, std::move(post));
}

Status GroupBase::post_part(Post post) {
  auto lock = enter(post.descriptor.name);
  if (!lock.ok()) return lock.status();
  Result<Sequence> taken = take_turn(LaneId::kMulticast, std::move(post));
  lock->unlock();
  if (!taken.ok()) return taken.status();
  pushed(LaneId::kMulticast, std::nullopt);
  return {};
}

// Whether to collapse already populated pages into huge pages now: once, for memory that lives
// longer than an operation and that others read.
bool GroupBase::Posting::collapses(const Slice& slice) const {
  constexpr uint32_t kCollapseAt = 3;
  return g_.read_by_peers() && slice.region && slice.region->uses() == kCollapseAt;
}

void GroupBase::Posting::advise_memory(const Slice& slice) const {
  if (g_.config_.huge_pages == 0 || g_.size_ == 1) return;
  advise_huge(slice.bytes());
  if (collapses(slice)) collapse_huge(slice.bytes());
}

// Slices that are adjacent in memory, as the blocks of one tensor are, count as one.
void GroupBase::Posting::advise_memory(const std::vector<Slice>& slices) const {
  if (g_.config_.huge_pages == 0 || g_.size_ == 1) return;
  for (size_t i = 0; i < slices.size();) {
    const Slice& first = slices[i];
    size_t length = slices[i++].length;
    while (i < slices.size() && slices[i].data() == first.data() + length) {
      length += slices[i++].length;
    }
    const ConstBytes range{first.data(), length};
    advise_huge(range);
    if (collapses(first)) collapse_huge(range);
  }
}

Status GroupBase::Posting::check_block(uint64_t bytes) const {
  if (bytes <= g_.max_block_) return {};
  return Status(Code::kInvalidArgument,
                op_ + ": a block of " + std::to_string(bytes) + " bytes is too long for group '" +
                    g_.name_ + "': at most " + std::to_string(g_.max_block_) +
                    " bytes with chunks of " + std::to_string(g_.fixed_.chunk) + "; split it");
}

Result<Sequence> GroupBase::Posting::push(Post post, PostOptions options, const Local& local) {
  const LaneId lane = lane_of(post.descriptor.kind);
  post.posted = g_.now();
  post.timeout = options.timeout;
  post.done = std::move(options.done);
  post.on_completed = std::move(options.on_completed);
  post.contributors = std::move(options.contributors);
  post.moments = std::move(options.moments);
  post.completed_step = options.completed_step;
  post.landing = std::move(options.landing);
  {
    auto lock = g_.enter(op_);
    if (!lock.ok()) return lock.status();
    if (g_.size_ > 1) {
      const bool both = post.descriptor.kind == wire::Kind::kBarrier && g_.state_->reduced;
      if (lane == LaneId::kReduce) g_.state_->reduced = true;
      Result<Sequence> taken =
          both ? g_.take_both_turns(std::move(post)) : g_.take_turn(lane, std::move(post));
      lock->unlock();
      // A thread that waits for a barrier drives the other lane.
      if (both) g_.pushed(LaneId::kReduce, std::nullopt);
      if (taken.ok()) g_.pushed(lane, awaited(options, *taken));
      return taken;
    }
    if (Status status = g_.check_sequence(op_, lane); !status.ok()) return status;
    post.sequence = g_.state_->next[lane]++;
  }
  if (local) local();
  g_.counters_[lane]->add(Counter::ops_posted);
  g_.counters_[lane]->add(Counter::ops_completed);
  if (post.done) post.done({});
  return post.sequence;
}

Result<Sequence> GroupBase::Posting::broadcast(Request call, PostOptions options) {
  const Member root = call.root;
  Slice data = std::move((root == g_.rank_ ? call.inputs : call.outputs)[0]);
  if (Status status = check_root(root); !status.ok()) return status;
  if (Status status = check_block(data.length); !status.ok()) return status;
  advise_memory(data);
  Post p;
  p.descriptor = {wire::Kind::kBroadcast, options.label.element, root, data.length, op_};
  if (root == g_.rank_) p.input = data;
  p.outputs = {std::move(data)};
  return push(std::move(p), std::move(options));
}

Result<Sequence> GroupBase::Posting::allgather(Request call, PostOptions options) {
  Slice input = std::move(call.inputs[0]);
  std::vector<Slice> outputs = std::move(call.outputs);
  if (outputs.size() != g_.size_) {
    return Status(Code::kInvalidArgument, op_ + ": " + std::to_string(outputs.size()) +
                                              " outputs for " + std::to_string(g_.size_) +
                                              " ranks");
  }
  for (size_t i = 0; i < outputs.size(); i++) {
    if (outputs[i].length != input.length) {
      return Status(Code::kInvalidArgument, op_ + ": output " + std::to_string(i) + " has " +
                                                std::to_string(outputs[i].length) +
                                                " bytes, the input has " +
                                                std::to_string(input.length));
    }
  }
  if (Status status = check_block(input.length); !status.ok()) return status;
  advise_memory(outputs);
  const Slice& own = outputs[g_.rank_];
  if (own.data() != input.data()) advise_memory(input);
  if (input.length > 0 && own.data() != input.data()) {
    if (overlap(input, own)) {
      return Status(Code::kInvalidArgument, op_ + ": the input partly overlaps its output block");
    }
    if (const auto open = g_.enter(op_); !open.ok()) return open.status();
    if (!g_.copies_own_block()) {
      copy_result(own.data(), input.data(), input.length, input.length * g_.size_);
      streaming_fence();
    }
  }
  Post p;
  p.descriptor = {wire::Kind::kAllgather, options.label.element, kNoMember, input.length, op_};
  p.input = std::move(input);
  p.outputs = std::move(outputs);
  return push(std::move(p), std::move(options));
}

Result<Sequence> GroupBase::Posting::reduction(wire::Kind kind, Member root, uint64_t bytes,
                                               ReduceArgs args, PostOptions options) {
  const size_t element = element_size(args.element);
  if (element == 0 || !reducible(args.element, args.reduction)) {
    return Status(Code::kInvalidArgument,
                  op_ + ": " + reduction_name(args.reduction) + " " +
                      error_text<ErrorId::reduction_undefined>(element_name(args.element)));
  }
  if (bytes % element != 0) {
    return Status(Code::kInvalidArgument,
                  op_ + ": " + std::to_string(bytes) + " " +
                      error_text<ErrorId::size_not_whole>(element_name(args.element)));
  }
  if (Status status = check_block(bytes); !status.ok()) return status;
  for (size_t i = 0; i < args.inputs.size(); i++) {
    const bool own = kind != wire::Kind::kReduceScatter || i == g_.rank_;
    if (overlap(args.inputs[i], args.output) && !(own && same(args.inputs[i], args.output))) {
      return Status(Code::kInvalidArgument,
                    op_ + ": the output partly overlaps input " + std::to_string(i));
    }
  }
  advise_memory(args.inputs);
  if (args.inputs.empty() || !same(args.inputs[0], args.output)) advise_memory(args.output);
  Post p;
  // Stations fold according to the descriptor.
  p.descriptor = {kind, static_cast<uint8_t>(args.element), root, bytes, op_};
  p.descriptor.reduction = static_cast<uint8_t>(args.reduction);
  p.reduce = args;
  return push(std::move(p), std::move(options), [&] { reduce_alone(args, args.inputs[0]); });
}

Result<Sequence> GroupBase::Posting::reduce_scatter(Request call, PostOptions options) {
  std::vector<Slice> inputs = std::move(call.inputs);
  Slice output = std::move(call.outputs[0]);
  const Reducing how = call.how;
  if (inputs.size() != g_.size_) {
    return Status(Code::kInvalidArgument, op_ + ": " + std::to_string(inputs.size()) +
                                              " inputs for " + std::to_string(g_.size_) + " ranks");
  }
  for (size_t i = 0; i < inputs.size(); i++) {
    if (inputs[i].length != output.length) {
      return Status(Code::kInvalidArgument, op_ + ": input " + std::to_string(i) + " has " +
                                                std::to_string(inputs[i].length) +
                                                " bytes, the output has " +
                                                std::to_string(output.length));
    }
  }
  const uint64_t bytes = output.length;
  return reduction(wire::Kind::kReduceScatter, kNoMember, bytes,
                   {how.element, how.reduction, how.factor, std::move(inputs), std::move(output)},
                   std::move(options));
}

Result<Sequence> GroupBase::Posting::allreduce(Request call, PostOptions options) {
  Slice input = std::move(call.inputs[0]), output = std::move(call.outputs[0]);
  const Reducing how = call.how;
  if (input.length != output.length) {
    return Status(Code::kInvalidArgument, op_ + ": the input has " + std::to_string(input.length) +
                                              " bytes, the output " +
                                              std::to_string(output.length));
  }
  const uint64_t bytes = input.length;
  return reduction(wire::Kind::kAllreduce, kNoMember, bytes,
                   {how.element, how.reduction, how.factor, {std::move(input)}, std::move(output)},
                   std::move(options));
}

Result<Sequence> GroupBase::Posting::reduce(Request call, PostOptions options) {
  Slice input = std::move(call.inputs[0]), output;
  const Member root = call.root;
  if (root == g_.rank_) output = std::move(call.outputs[0]);
  const Reducing how = call.how;
  if (Status status = check_root(root); !status.ok()) return status;
  if (root == g_.rank_ && input.length != output.length) {
    return Status(Code::kInvalidArgument, op_ + ": the input has " + std::to_string(input.length) +
                                              " bytes, the output " +
                                              std::to_string(output.length));
  }
  const uint64_t bytes = input.length;
  return reduction(wire::Kind::kReduce, root, bytes,
                   {how.element, how.reduction, how.factor, {std::move(input)}, std::move(output)},
                   std::move(options));
}

// All blocks of a rooted kind have one length. It is that of this rank's block for or from the
// root; on the root, that of a block from or for any other rank.
size_t GroupBase::Posting::block_of(const Request& call) const {
  const bool gathers = call.kind == wire::Kind::kGather;
  const auto& with_root = gathers ? call.inputs : call.outputs;
  const auto& with_others = gathers ? call.outputs : call.inputs;
  if (call.root != g_.rank_ || g_.size_ == 1) return with_root[call.root].length;
  return with_others[call.root == 0 ? 1 : 0].length;
}

Status GroupBase::Posting::check_exchange(const Request& call) const {
  const size_t size = g_.size_;
  const auto wrong = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, op_ + ": " + what);
  };
  if (call.inputs.size() != size || call.outputs.size() != size) {
    return wrong(std::to_string(call.inputs.size()) + " inputs and " +
                 std::to_string(call.outputs.size()) + " outputs for " + std::to_string(size) +
                 " ranks");
  }
  const Slice &in = call.inputs[g_.rank_], &out = call.outputs[g_.rank_];
  const auto differ = [&](const std::string& what, size_t i, size_t bytes, size_t wanted) {
    return wrong(what + " " + std::to_string(i) + " has " + std::to_string(bytes) +
                 " bytes, the block has " + std::to_string(wanted));
  };
  const bool all = call.kind == wire::Kind::kAllToAll;
  const bool own = all || call.root == g_.rank_;
  if (own && out.length != in.length) return differ("output", g_.rank_, out.length, in.length);
  if (own && overlap(in, out) && !same(in, out))
    return wrong("this rank's own blocks partly overlap");
  if (all) return {};
  const bool gathers = call.kind == wire::Kind::kGather;
  const size_t block = block_of(call);
  for (size_t m = 0; own && m < size; m++) {
    const size_t bytes = (gathers ? call.outputs : call.inputs)[m].length;
    if (m == g_.rank_ && in.length == 0) continue;  // already in place
    if (bytes != block) return differ(gathers ? "output" : "input", m, bytes, block);
  }
  return check_block(block);
}

Status GroupBase::Posting::check_root(Member root) const {
  if (root < g_.size_) return {};
  return Status(Code::kInvalidArgument, op_ + ": root " + std::to_string(root) +
                                            " is not a rank of group '" + g_.name_ + "' (size " +
                                            std::to_string(g_.size_) + ")");
}

// This rank's own block is copied here; the others are sent.
Result<Sequence> GroupBase::Posting::exchange(Request call, PostOptions options) {
  const bool all = call.kind == wire::Kind::kAllToAll;
  if (Status status = all ? Status() : check_root(call.root); !status.ok()) return status;
  if (Status status = check_exchange(call); !status.ok()) return status;
  Post p;
  p.descriptor = {call.kind, options.label.element, all ? kNoMember : call.root,
                  all ? 0 : block_of(call), op_};
  advise_memory(call.inputs);
  advise_memory(call.outputs);
  Slice &in = call.inputs[g_.rank_], &out = call.outputs[g_.rank_];
  if (out.length > 0 && (all || call.root == g_.rank_) && !same(in, out)) {
    if (const auto open = g_.enter(op_); !open.ok()) return open.status();
    copy_result(out.data(), in.data(), in.length, in.length * g_.size_);
    streaming_fence();
  }
  in = out = {};
  p.exchange = ExchangeArgs{std::move(call.inputs), std::move(call.outputs)};
  return push(std::move(p), std::move(options));
}

Result<Sequence> GroupBase::Posting::barrier(Request, PostOptions options) {
  Post p;
  p.descriptor = {wire::Kind::kBarrier, 0xff, kNoMember, 0, op_};
  return push(std::move(p), std::move(options));
}

}  // namespace mcast
