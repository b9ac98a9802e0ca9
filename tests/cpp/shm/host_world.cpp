#include "shm/host_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/errors.h"
#include "base/reduce_kernels.h"
#include "support/reach.h"

namespace mcast::test {
namespace {

using wire::Kind;

constexpr Element kElements[] = {Element::kFloat64,  Element::kFloat32, Element::kFloat16,
                                 Element::kBFloat16, Element::kInt64,   Element::kInt32,
                                 Element::kInt16,    Element::kInt8,    Element::kUInt8};

size_t blocks_of(Kind kind, uint32_t ranks) {
  return kind == Kind::kAllgather || kind == Kind::kReduceScatter ? ranks : 1;
}

// Fills with small numbers of the element type, so that no float is a NaN.
void fill(std::vector<std::byte>& data, Element element, uint64_t seed) {
  Rng rng(seed);
  const size_t size = element_size(element), count = data.size() / size;
  for (size_t i = 0; i < count; i++) {
    const auto value = static_cast<int>(rng.next() % 100);
    std::byte* const at = data.data() + i * size;
    const auto put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
    switch (element) {
      case Element::kFloat64:
        put(static_cast<double>(value) + 0.1);
        break;
      case Element::kFloat32:
        put(static_cast<float>(value) + 0.1f);
        break;
      case Element::kFloat16:
        put(static_cast<uint16_t>(0x3c00 + value));
        break;
      case Element::kBFloat16:
        put(static_cast<uint16_t>(0x3f80 + value));
        break;
      case Element::kInt64:
        put(static_cast<int64_t>(value));
        break;
      case Element::kInt32:
        put(static_cast<int32_t>(value));
        break;
      case Element::kInt16:
        put(static_cast<int16_t>(value));
        break;
      default:
        put(static_cast<int8_t>(value));
        break;
    }
  }
}

}  // namespace

Nanos monotonic() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

HostCall make_exchange(uint64_t seed, uint32_t index, Member rank, uint32_t ranks) {
  Rng rng(seed * 1000003 + index);
  static constexpr size_t kSizes[] = {0, 1, 1000, 40'000, 131'072, 700'001};
  HostCall call;
  wire::Descriptor& d = call.descriptor;
  d.kind = static_cast<Kind>(static_cast<uint64_t>(Kind::kAllToAll) + rng.next() % 3);
  call.element = Element::kUInt8;
  d.element = static_cast<uint8_t>(call.element);
  const size_t bytes = kSizes[rng.next() % std::size(kSizes)];
  if (wire::is_rooted(d.kind)) {
    d.root = static_cast<Member>(rng.next() % ranks);
    d.bytes = bytes;
  }
  const auto length = [&](uint32_t from, uint32_t to) -> size_t {
    if (from == to) return 0;
    if (d.kind == Kind::kGather) return to == d.root ? bytes : 0;
    if (d.kind == Kind::kScatter) return from == d.root ? bytes : 0;
    Rng pair(seed * 7919 + index * 4099 + from * 64 + to);
    return pair.chance(0.3) ? 0 : pair.below(bytes + 1);
  };
  size_t all = 0;
  for (uint32_t m = 0; m < ranks; m++) {
    call.inputs.emplace_back(length(rank, m));
    fill(call.inputs.back(), call.element, (seed * 7919 + index) * 4099 + rank * 64 + m);
    call.lengths.push_back(length(m, rank));
    all += call.lengths.back();
  }
  call.output.resize(all);
  return call;
}

// In every third seed, half of the calls are exchanges. The other calls must not change.
HostCall make_call(uint64_t seed, uint32_t index, Member rank, uint32_t ranks) {
  if (seed % 3 == 2 && index % 2 == 1) return make_exchange(seed, index, rank, ranks);
  Rng rng(seed * 1000003 + index);
  static constexpr size_t kSizes[] = {0,      1,      3,      64,     1000,    4096,
                                      16'384, 65'528, 65'536, 65'544, 131'072, 300'008};
  HostCall call;
  wire::Descriptor& d = call.descriptor;
  constexpr uint64_t kStreamed = 6;  // number of kinds; exchanges are made separately
  d.kind = static_cast<Kind>(1 + rng.next() % kStreamed);
  call.element = kElements[rng.next() % std::size(kElements)];
  const size_t size = element_size(call.element);
  const bool reduces = wire::is_reduction(d.kind);
  d.bytes = d.kind == Kind::kBarrier ? 0 : kSizes[rng.next() % std::size(kSizes)];
  if (reduces) d.bytes = d.bytes / size * size;
  d.root = d.kind == Kind::kBroadcast || d.kind == Kind::kReduce
               ? static_cast<Member>(rng.next() % ranks)
               : kNoMember;
  d.element = static_cast<uint8_t>(call.element);
  if (reduces) {
    do {
      call.reduction = static_cast<Reduction>(1 + rng.next() % 9);
    } while (!reducible(call.element, call.reduction));
    d.reduction = static_cast<uint8_t>(call.reduction);
  }
  const bool gives = d.kind != Kind::kBarrier && (d.kind != Kind::kBroadcast || d.root == rank);
  const size_t inputs = d.kind == Kind::kReduceScatter ? ranks : 1;
  for (size_t i = 0; gives && i < inputs; i++) {
    call.inputs.emplace_back(d.bytes);
    fill(call.inputs.back(), call.element, (seed * 7919 + index) * 4099 + rank * 64 + i);
  }
  if (d.kind == Kind::kAllgather) call.output.resize(d.bytes * ranks);
  if (d.kind == Kind::kBroadcast || d.kind == Kind::kReduceScatter || d.kind == Kind::kAllreduce ||
      (d.kind == Kind::kReduce && d.root == rank)) {
    call.output.resize(d.bytes);
  }
  if (d.kind == Kind::kBroadcast && d.root == rank) call.output = call.inputs[0];
  call.completed.assign(blocks_of(d.kind, ranks), 0);
  return call;
}

namespace {

// Folds elements [from, to) of the result of `rank` in a reduction, starting with rank `first`.
void fold_elements(const std::vector<HostCall>& all, uint32_t rank, uint32_t first, size_t from,
                   size_t to, std::byte* out) {
  const auto ranks = static_cast<uint32_t>(all.size());
  const Element element = all[0].element;
  const size_t size = element_size(element);
  const bool scatter = all[0].descriptor.kind == Kind::kReduceScatter;
  std::vector<std::byte> sum((to - from) * accumulator_size(element));
  for (uint32_t i = 0; i < ranks; i++) {
    const uint32_t r = (first + i) % ranks;
    const std::byte* source = all[r].inputs[scatter ? rank : 0].data() + from * size;
    (i == 0 ? fold_first : fold_next)(element, all[0].reduction, 0.5 + r, source, sum.data(),
                                      to - from);
  }
  fold_finish(element, all[0].reduction, ranks, sum.data(), out + from * size, to - from);
}

}  // namespace

std::vector<std::vector<std::byte>> expected_outputs(uint64_t seed, uint32_t index, uint32_t ranks,
                                                     FoldOrder fold) {
  std::vector<HostCall> all;
  for (uint32_t r = 0; r < ranks; r++) {
    all.push_back(make_call(seed, index, static_cast<Member>(r), ranks));
  }
  const wire::Descriptor& d = all[0].descriptor;
  const Element element = all[0].element;
  const size_t count = d.bytes / element_size(element);
  std::vector<std::vector<std::byte>> outputs;
  for (uint32_t rank = 0; rank < ranks; rank++) {
    std::vector<std::byte> out(all[rank].output.size());
    if (wire::is_exchange(d.kind)) {
      auto to = out.begin();
      for (const HostCall& from : all) {
        to = std::copy(from.inputs[rank].begin(), from.inputs[rank].end(), to);
      }
    } else if (d.bytes > 0 && !out.empty() && d.kind == Kind::kBroadcast) {
      out = all[d.root].inputs[0];
    } else if (d.bytes > 0 && !out.empty() && d.kind == Kind::kAllgather) {
      for (uint32_t r = 0; r < ranks; r++) {
        std::memcpy(out.data() + r * d.bytes, all[r].inputs[0].data(), d.bytes);
      }
    } else if (d.bytes > 0 && !out.empty()) {
      const bool scatter = d.kind == Kind::kReduceScatter;
      const size_t part = scatter ? count : (count + ranks - 1) / ranks;  // of an owner
      for (size_t e = 0; e < count; e += part) {
        const auto owner = scatter ? rank : static_cast<uint32_t>(e / part);
        const uint32_t first = fold == FoldOrder::kTurn ? (owner + 1) % ranks : 0;
        fold_elements(all, rank, first, e, std::min(count, e + part), out.data());
      }
    }
    outputs.push_back(std::move(out));
  }
  return outputs;
}

Post make_post(HostCall& call, Sequence sequence, Nanos now, bool ends) {
  const wire::Descriptor& d = call.descriptor;
  const auto lend = [](std::vector<std::byte>& data) {
    return std::make_shared<Region>(data.data(), data.size(), nullptr);
  };
  Post p;
  p.sequence = sequence;
  p.descriptor = d;
  p.posted = now;
  p.done = [&call](const Status& status) {
    call.ended++;
    call.status = status;
    // No rank may need the memory any more; a later read gets other bytes.
    call.result = call.output;
    std::fill(call.output.begin(), call.output.end(), std::byte{0xEE});
    for (auto& input : call.inputs) std::fill(input.begin(), input.end(), std::byte{0xEE});
  };
  if (ends) {
    p.on_completed = [&call](uint32_t output, uint64_t bytes) {
      EXPECT_GT(bytes, call.completed[output]);
      call.completed[output] = bytes;
    };
    p.completed_step = 10'000;
  }
  const auto whole = [](const std::shared_ptr<Region>& region) {
    return Slice{region, 0, region->size()};
  };
  if (wire::is_exchange(d.kind)) {
    ExchangeArgs args;
    const auto output = lend(call.output);
    size_t at = 0;
    for (auto& input : call.inputs) args.inputs.push_back(whole(lend(input)));
    for (const size_t length : call.lengths) {
      args.outputs.push_back({output, at, length});
      at += length;
    }
    p.exchange = std::move(args);
    p.on_completed = nullptr;
    return p;
  }
  if (wire::is_reduction(d.kind)) {
    ReduceArgs args;
    args.element = call.element;
    args.reduction = call.reduction;
    for (auto& input : call.inputs) args.inputs.push_back(whole(lend(input)));
    args.output = whole(lend(call.output));
    p.reduce = std::move(args);
    return p;
  }
  if (!call.inputs.empty()) p.input = whole(lend(call.inputs[0]));
  const auto region = lend(call.output);
  const size_t outputs = d.bytes > 0 ? call.output.size() / d.bytes : call.completed.size();
  for (size_t i = 0; d.kind != Kind::kBarrier && i < outputs; i++) {
    p.outputs.push_back({region, i * d.bytes, d.bytes});
  }
  return p;
}

struct HostWorld::Node final : HostPort {
  HostWorld& world;
  Member self;
  Counters counters;
  std::unique_ptr<HostCore> core;
  std::vector<std::unique_ptr<HostCall>> calls;
  bool asleep = true, killed = false;
  // `looked`: it has polled and not armed its needs yet. `rung`: a peer woke it since that poll
  // began.
  bool looked = false, rung = false;

  Node(HostWorld& w, Member m) : world(w), self(m) {}

  // If memory can be mapped, two of three tensors are.
  uint64_t place_of(const Slice& slice) override {
    const uint64_t address = HostPort::place_of(slice);
    const bool mapped = world.peers_ == PeerMemory::kMapped && (address >> 6) % 3 != 0;
    return mapped ? kInArena | address : address;
  }
  const std::byte* map(Member, uint64_t place, size_t) override {
    if ((place & kInArena) == 0) return nullptr;
    if (const auto hook = world.on_read) hook();
    return reinterpret_cast<const std::byte*>(place & ~kInArena);
  }
  Status read(Member from, uint64_t address, std::byte* to, size_t length) override {
    if (const auto hook = world.on_read) hook();
    if (world.nodes_[from]->killed) return Status(Code::kPeerLost, "its process has ended");
    std::memcpy(to, reinterpret_cast<const void*>(address), length);
    return {};
  }
  void wake(Member member, HostWaiter) override { world.nodes_[member]->ring(); }
  void wake_all() override {
    for (auto& node : world.nodes_) node->ring();
  }
  void ring() {
    asleep = false;
    rung = true;
  }
  Nanos now() override {
    if (const auto hook = world.on_now) hook();
    return world.now;
  }
};

HostWorld::HostWorld(uint32_t ranks, PeerMemory memory, uint64_t seed, FoldOrder fold)
    : ranks_(ranks), rng_(seed), memory_(ranks), peers_(memory) {
  for (uint32_t r = 0; r < ranks; r++) {
    const auto m = static_cast<Member>(r);
    nodes_.push_back(std::make_unique<Node>(*this, m));
    HostParams params;
    params.name = "g";
    params.self = m;
    params.size = ranks;
    params.lane = kMessageLane;
    params.memory = memory;
    params.fold = fold;
    nodes_[r]->core =
        std::make_unique<HostCore>(params, memory_.block(), *nodes_[r], nodes_[r]->counters);
  }
}

HostWorld::~HostWorld() {
  for (const auto& node : nodes_) add_reach(node->counters);
}

HostCore& HostWorld::core(Member m) { return *nodes_[m]->core; }

std::vector<std::unique_ptr<HostCall>>& HostWorld::calls(Member m) { return nodes_[m]->calls; }

bool HostWorld::turn(Member m, bool large) {
  const bool more = core(m).progress(large);
  core(m).deliver();
  return more;
}

uint64_t HostWorld::total(Counter c) const {
  uint64_t sum = 0;
  for (const auto& node : nodes_) sum += node->counters.get(c);
  return sum;
}

HostCall& HostWorld::post(Member m, HostCall call, Nanos timeout) {
  Node& node = *nodes_[m];
  node.calls.push_back(std::make_unique<HostCall>(std::move(call)));
  HostCall& kept = *node.calls.back();
  Post p = make_post(kept, static_cast<Sequence>(node.calls.size() - 1), now, rng_.next() % 2 == 0);
  p.timeout = timeout;
  if (p.reduce) p.reduce->factor = 0.5 + m;
  node.core->post(std::move(p));
  node.core->deliver();
  node.core->disarm();
  node.ring();
  return kept;
}

HostCall& HostWorld::post_in_place(Member m, HostCall call) {
  Node& node = *nodes_[m];
  node.calls.push_back(std::make_unique<HostCall>(std::move(call)));
  HostCall& kept = *node.calls.back();
  Post p = make_post(kept, static_cast<Sequence>(node.calls.size() - 1), now, false);
  p.reduce->inputs = {p.reduce->output};
  node.core->post(std::move(p));
  node.ring();
  return kept;
}

void HostWorld::post(Member m, MessagePost message) {
  Node& node = *nodes_[m];
  message.posted = now;
  node.core->post_message(std::move(message));
  node.core->deliver();
  node.core->disarm();
  node.ring();
}

void HostWorld::leave(Member m) {
  Status outcome;
  EXPECT_TRUE(core(m).may_leave(false, false, outcome));
  core(m).leave();
  nodes_[m]->killed = true;
}

void HostWorld::kill(Member m) { nodes_[m]->killed = true; }

bool HostWorld::step() {
  std::vector<Node*> awake;
  for (auto& node : nodes_) {
    if (!node->asleep && !node->killed) awake.push_back(node.get());
  }
  if (awake.empty()) return false;
  Node& node = *awake[rng_.next() % awake.size()];
  now += kMicro;
  if (node.looked) {
    node.looked = false;
    node.asleep = node.core->arm(HostWaiter::kCaller) && !node.rung;
  } else {
    node.core->disarm();
    node.rung = false;
    node.looked = !turn(node.self, rng_.next() % 3 != 0);
  }
  return true;
}

bool HostWorld::run(uint64_t steps) {
  for (uint64_t i = 0; i < steps; i++) {
    if (!step()) return true;
  }
  return false;
}

void HostWorld::watch() {
  for (auto& node : nodes_) {
    if (node->killed) continue;
    node->core->disarm();
    node->core->check({});
    for (const Member m : node->core->awaited()) {
      if (nodes_[m]->killed) {
        node->core->fail(make_error<ErrorId::rank_lost>(m, "it was killed"), m);
        break;
      }
    }
    node->core->deliver();
    node->ring();
  }
}

}  // namespace mcast::test
