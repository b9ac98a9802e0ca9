// Lays slices out as the client would stage them (host_engine/client/client_staging.cpp), but in
// the engine's memory: sorted by address, merged if they overlap or touch, one block per merged
// range.
//
// The part of an output grows by marks, as far as it is final, and by the end of the operation. The
// own output of an all-gather gets the bytes of the input as they are pulled.
#include "host_engine/server/transfer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/join_ranges.h"

namespace mcast::service {
namespace {

constexpr size_t kCallBytes = size_t{256} << 10;

}  // namespace

uint32_t CopyList::add(uint64_t address, std::byte* here, uint64_t length) {
  parts_.push_back({address, here, length});
  return static_cast<uint32_t>(parts_.size() - 1);
}

void CopyList::raise(uint32_t part, uint64_t bytes) {
  Part& p = parts_[part];
  bytes = std::min(bytes, p.length);
  if (dropped_ || bytes <= p.until) return;
  if (p.until == p.done) due_.push_back(part);
  p.until = bytes;
}

void CopyList::raise_all() {
  for (uint32_t i = 0; i < parts_.size(); i++) raise(i, parts_[i].length);
}

std::vector<CopyList::Copied> CopyList::next(size_t bytes,
                                             std::vector<ClientMemory::Span>& spans) const {
  std::vector<Copied> batch;
  spans.clear();
  for (const uint32_t part : due_) {
    const Part& p = parts_[part];
    const uint64_t count = std::min<uint64_t>(bytes, p.until - p.done);
    spans.push_back({p.address + p.done, p.here + p.done, count});
    batch.push_back({part, p.done, p.done + count});
    bytes -= count;
    if (bytes == 0 || spans.size() == ClientMemory::kMostSpans) break;
  }
  return batch;
}

void CopyList::advance(const std::vector<Copied>& batch) {
  if (dropped_) return;
  // The batch is due first; more may have become due meanwhile, also of the same parts.
  for (const Copied& copied : batch) {
    Part& p = parts_[copied.part];
    p.done = copied.to;
    due_.pop_front();
    if (p.done < p.until) due_.push_back(copied.part);
  }
}

void CopyList::drop() {
  dropped_ = true;
  due_.clear();
}

Status Transfer::cover(const std::vector<OwnSlice>& own, const OwnSlice* but, BouncePool& pool) {
  std::vector<Range> wanted;
  for (const OwnSlice& s : own) {
    if (&s != but) wanted.push_back({s.address, s.address + s.length, nullptr});
  }
  join_ranges(std::move(wanted), ranges_);
  for (Range& range : ranges_) {
    const uint64_t length = range.end - range.begin, bytes = length + range.begin % 64;
    auto block = pool.take(std::max(length, bytes));
    if (!block.ok()) return block.status();
    range.block = std::move(block).value();
  }
  return {};
}

Slice Transfer::place(const OwnSlice& slice) const {
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), slice.address,
                                     [](uint64_t a, const Range& r) { return a < r.begin; });
  const Range& range = *std::prev(next);
  std::byte* const here = range.base() + (slice.address - range.begin);
  return {std::make_shared<Region>(here, slice.length, range.block), 0, slice.length};
}

void Transfer::add_input(const OwnSlice& slice, Slice& input) {
  input.region->set_readable(0);
  const uint32_t part = pulls_.add(slice.address, input.data(), slice.length);
  pulled_.push_back({input.region});
  if (pull_of_.size() <= slice.index) pull_of_.resize(slice.index + 1, kNoPart);
  pull_of_[slice.index] = part;
}

Result<std::shared_ptr<Transfer>> Transfer::make(What what, const std::vector<OwnSlice>& own,
                                                 std::vector<Slice>& inputs,
                                                 std::vector<Slice>& outputs, BouncePool& pool) {
  std::shared_ptr<Transfer> t(new Transfer(std::move(what)));
  const OwnSlice *gathered = nullptr, *same = nullptr;  // this rank's block, and its output
  for (const OwnSlice& s : own) {
    const bool gathers = t->what.kind == wire::Kind::kAllgather;
    if (gathers && s.role == ipc::Role::kInput) gathered = &s;
    if (gathers && s.role == ipc::Role::kOutput && s.index == t->what.self) same = &s;
  }
  const bool fits = gathered != nullptr && t->what.self < outputs.size() &&
                    gathered->length == (same ? same->length : outputs[t->what.self].length);
  if (Status covered = t->cover(own, fits ? gathered : nullptr, pool); !covered.ok()) {
    return covered;
  }
  for (const OwnSlice& s : own) {
    if (s.role == ipc::Role::kInput) continue;
    outputs[s.index] = t->place(s);
    if (&s == same && fits && s.address == gathered->address) continue;  // in place
    if (t->push_of_.size() <= s.index) t->push_of_.resize(s.index + 1, kNoPart);
    t->push_of_[s.index] = t->pushes_.add(s.address, outputs[s.index].data(), s.length);
  }
  for (const OwnSlice& s : own) {
    if (s.role == ipc::Role::kOutput) continue;
    if (&s == gathered && fits) {
      const Slice& where = outputs[t->what.self];
      inputs[s.index] = {std::make_shared<Region>(where.data(), s.length, where.region), 0,
                         s.length};
    } else {
      inputs[s.index] = t->place(s);
    }
    t->add_input(s, inputs[s.index]);
    if (&s == gathered && fits) t->pulled_.back().echo = part_of(t->push_of_, t->what.self);
  }
  if (!t->what.staged) t->pulls_.raise_all();
  return t;
}

void Transfer::allow(uint32_t input, uint64_t bytes) {
  if (outcome.ok() && !ended && has_input(input)) pulls_.raise(pull_of_[input], bytes);
}

void Transfer::mark(uint32_t output, uint64_t bytes) {
  const uint32_t part = part_of(push_of_, output);
  if (outcome.ok() && part != kNoPart) pushes_.raise(part, bytes);
}

void Transfer::close(bool all) {
  pulls_.drop();
  if (all) {
    pushes_.raise_all();
  } else {
    pushes_.drop();
  }
}

std::vector<CopyList::Copied> Transfer::next(Way way,
                                             std::vector<ClientMemory::Span>& spans) const {
  return list(way).next(kCallBytes, spans);
}

void Transfer::advance(Way way, const std::vector<CopyList::Copied>& batch) {
  list(way).advance(batch);
  if (way == kPush) return;
  for (const CopyList::Copied& copied : batch) {
    const Pulled& pulled = pulled_[copied.part];
    pulled.region->set_readable(copied.to);
    if (pulled.echo != kNoPart && outcome.ok()) pushes_.raise(pulled.echo, copied.to);
  }
}

}  // namespace mcast::service
