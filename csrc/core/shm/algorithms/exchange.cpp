// all_to_all, gather, scatter: blocks with one receiver each. Round 0 announces the length of every
// block, which only its sender and its receiver know, and its place.
//
// If all ranks can read each other's memory (kExchange), this is the only round:
// 1. A rank publishes a table: the length and place of its block for each other rank. If all blocks
//   fit, they are in the slot, behind the table.
// 2. Each of the others takes its block, starting with the next rank's, so that different ranks are
//   read at any moment. Blocks that are not in the slot are lent until all have done so.
//
// Otherwise (kSlotExchange):
// 1. A rank publishes the table, without places.
// 2. In every further round it publishes a part of each block; parts are as large as a slot allows.
//   All ranks have read all tables, so all know how many rounds the longest block takes.
//
// Cost per rank, for B bytes in all its blocks: kExchange: the others read B; if B and the table
// fit into 128 KiB, B is copied into a slot instead. kSlotExchange: B copied into slots.
#include <cstring>

#include "base/streaming_copy.h"
#include "collective/error_text.h"
#include "shm/algorithms/algorithms.h"

namespace mcast {
namespace {

// Describes the block for one rank; entries are in the order of the ranks.
struct Entry {
  uint64_t length, place;
};
static_assert(kHostMembers * sizeof(Entry) <= kHostSlot / 2);

// SlotHeader::address: places are offsets in the slot
constexpr uint64_t kInSlot = 1;
constexpr size_t kReadPiece = 256u << 10;  // read at once
// Exchanges of more bytes are only taken if `large`.
constexpr size_t kTakenAtOnce = kHostSlot / 2;

Entry entry_of(const HostTools& tools, const HostOperation& op, Member from, Member to) {
  Entry entry;
  std::memcpy(&entry, tools.lane.data(from, op.first) + to * sizeof entry, sizeof entry);
  return entry;
}

uint64_t longest_of(const HostTools& tools, const HostOperation& op) {
  uint64_t most = 0;
  for (uint32_t from = 0; from < tools.lane.size(); from++) {
    for (uint32_t to = 0; to < tools.lane.size(); to++) {
      const auto f = static_cast<Member>(from), t = static_cast<Member>(to);
      most = std::max(most, entry_of(tools, op, f, t).length);
    }
  }
  return most;
}

// Writes the table, and behind it the blocks if all of them fit.
void fill_table(HostTools& tools, HostOperation& op, bool places) {
  const Member self = tools.lane.self();
  const std::vector<Slice>& inputs = op.post.exchange->inputs;
  std::byte* const data = tools.lane.data(self, op.first);
  size_t all = 0, at = inputs.size() * sizeof(Entry);
  for (const Slice& input : inputs) all += input.length;
  op.in_slot = places && all <= kHostSlot - at;
  if (op.in_slot) tools.lane.header(self, op.first).address = kInSlot;
  for (size_t m = 0; m < inputs.size(); m++) {
    Entry entry{inputs[m].length, at};
    if (op.in_slot) {
      copy_to_slot(tools, op.first, inputs[m], 0, inputs[m].length, at);
      at += inputs[m].length;
    } else if (places && entry.length > 0) {
      entry.place = tools.port.place_of(inputs[m]);
    }
    std::memcpy(data + m * sizeof entry, &entry, sizeof entry);
  }
}

// Returns true if the rank may have a block for this one, and so must be waited for.
bool awaits(const HostOperation& op, Member self, Member from) {
  const wire::Descriptor& d = op.post.descriptor;
  if (d.kind == wire::Kind::kAllToAll) return true;
  return d.kind == wire::Kind::kGather ? self == d.root : from == d.root;
}

bool take_block(HostTools& tools, HostOperation& op, Member from) {
  const Entry entry = entry_of(tools, op, from, tools.lane.self());
  const Slice& output = op.post.exchange->outputs[from];
  if (tools.lane.header(from, op.first).address == kInSlot) {
    if (output.length > 0) {
      std::memcpy(output.data(), tools.lane.data(from, op.first) + entry.place, output.length);
    }
    return true;
  }
  for (size_t at = 0; at < output.length; at += kReadPiece) {
    const size_t length = std::min(kReadPiece, output.length - at);
    if (!tools.folder.pull(from, entry.place + at, output.data() + at, length, output.length)) {
      return false;
    }
  }
  return true;
}

}  // namespace

HostPlan plan_exchange(uint32_t members, PeerMemory memory) {
  HostPlan plan;
  plan.algorithm = HostAlgorithm::kExchange;
  if (memory != PeerMemory::kSlots) return plan;
  plan.algorithm = HostAlgorithm::kSlotExchange;
  plan.rounds = HostPlan::kUnknown;
  plan.slice = slot_part(members);
  return plan;
}

std::optional<Status> lengths_that_differ(const HostTools& tools, const HostOperation& op,
                                          uint32_t index, Member from) {
  if (!op.post.exchange || index > 0) return std::nullopt;
  const Member self = tools.lane.self();
  const uint64_t there = entry_of(tools, op, from, self).length;
  const uint64_t expected = op.post.exchange->outputs[from].length;
  if (there == expected) return std::nullopt;
  return lengths_differ(op.post.sequence, op.post.descriptor, from, there, self, expected);
}

void fill_exchange(HostTools& tools, HostOperation& op) { fill_table(tools, op, true); }

Taken take_exchange(HostTools& tools, HostOperation& op, bool large) {
  if (op.post.exchange->bytes() > kTakenAtOnce && !large) {
    const bool others = std::count(op.agreed.begin(), op.agreed.end(), true) > 1;
    return others ? Taken::kLarge : Taken::kWaits;
  }
  const uint32_t size = tools.lane.size();
  bool all = true;
  for (uint32_t i = 1; i < size; i++) {
    const auto m = static_cast<Member>((tools.lane.self() + i) % size);
    if (op.taken[m] || !awaits(op, tools.lane.self(), m)) continue;
    if (!op.agreed[m]) {
      all = false;
      continue;
    }
    if (op.first_byte == kNever) op.first_byte = tools.port.now();
    if (!take_block(tools, op, m)) return Taken::kFailed;
    op.taken[m] = true;
  }
  streaming_fence();
  if (!all) return Taken::kWaits;
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

void fill_slot_exchange(HostTools& tools, HostOperation& op, uint32_t index) {
  if (index == 0) return fill_table(tools, op, false);
  const std::vector<Slice>& inputs = op.post.exchange->inputs;
  for (size_t m = 0; m < inputs.size(); m++) {
    copy_to_slot(tools, op.first + index, inputs[m], (index - 1) * op.plan.slice, op.plan.slice,
                 m * op.plan.slice);
  }
}

Taken take_slot_exchange(HostTools& tools, HostOperation& op, uint32_t index, bool large) {
  if (!op.all_agree()) return Taken::kWaits;
  if (index == 0) {
    op.plan.rounds =
        1 + static_cast<uint32_t>((longest_of(tools, op) + op.plan.slice - 1) / op.plan.slice);
    return Taken::kAll;
  }
  if (op.plan.rounds > 2 && !large) return Taken::kLarge;
  if (op.first_byte == kNever) op.first_byte = tools.port.now();
  const size_t offset = (index - 1) * op.plan.slice;
  for (uint32_t i = 0; i < tools.lane.size(); i++) {
    const auto m = static_cast<Member>(i);
    const Slice& output = op.post.exchange->outputs[m];
    const size_t length = clip(offset, op.plan.slice, output.length);
    if (length == 0) continue;
    std::memcpy(output.data() + offset,
                tools.lane.data(m, op.first + index) + tools.lane.self() * op.plan.slice, length);
  }
  op.last_byte = tools.port.now();
  return Taken::kAll;
}

}  // namespace mcast
