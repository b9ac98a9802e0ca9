// The period is a prime number of pages, so that pieces of equal size do not fall on equal bytes.
// Floating-point numbers are between 1/128 and 2 with all bits of their mantissa in use: every step
// of a sum rounds, so another order gives other bits, and no result is a NaN.
#include "sim/world/contributions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/rng.h"
#include "sim/network/expected.h"

namespace mcast::sim {
namespace {

constexpr size_t kPeriod = size_t{251} * 4096;
constexpr size_t kPiece = 64 << 10;  // bytes folded at once

// Turns a random word into a number of the range above.
uint32_t number(Element element, uint32_t word) {
  if (element == Element::kFloat32) return (word & 0x807fffff) | (120 + (word >> 24 & 7)) << 23;
  if (element != Element::kBFloat16) return word;
  const auto half = [](uint32_t bits) { return (bits & 0x807f) | (120 + (bits >> 8 & 7)) << 7; };
  return half(word & 0xffff) | half(word >> 16) << 16;
}

}  // namespace

bool Contributions::serve(const Shape& shape) {
  const bool element = shape.element == Element::kFloat32 || shape.element == Element::kBFloat16 ||
                       shape.element == Element::kInt32;
  const bool kind =
      shape.kind == wire::Kind::kAllreduce || shape.kind == wire::Kind::kReduceScatter;
  // Shorter last parts of an all_reduce would pass through memory of the engine, so they are
  // excluded.
  return element && kind && shape.bytes > 0 && shape.reduction == Reduction::kSum &&
         shape.bytes % (shape.ranks * element_size(shape.element)) == 0;
}

Contributions::Contributions(const Shape& shape)
    : shape_(shape), mapped_((shape.bytes / kPeriod + 2) * kPeriod) {
  fill();
  // The region needs no owner: World keeps this object as long as slices of it exist.
  inputs_ = std::make_shared<Region>(numbers_, mapped_, nullptr);
  result_ = std::make_shared<const Reference>(fold(), shape_.ranks);
  if (shape_.kind == wire::Kind::kAllreduce) output_ = std::make_shared<Pages>(shape_.bytes);
}

Contributions::~Contributions() { munmap(numbers_, mapped_); }

void Contributions::fill() {
  void* const all = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  numbers_ = static_cast<std::byte*>(all);
  bool good =
      all != MAP_FAILED && mmap(all, kPeriod, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  for (size_t i = 0; good && i < kPeriod; i += 4) {
    const uint32_t word = number(shape_.element, static_cast<uint32_t>(mix64(shape_.op << 32 ^ i)));
    std::memcpy(numbers_ + i, &word, 4);
  }
  good = good && mprotect(all, kPeriod, PROT_READ) == 0;
  // mremap with an old length of 0 maps the same shared memory once more.
  for (size_t at = kPeriod; good && at < mapped_; at += kPeriod) {
    good = mremap(all, 0, kPeriod, MREMAP_MAYMOVE | MREMAP_FIXED, numbers_ + at) != MAP_FAILED;
  }
  if (good) return;
  log(LogLevel::kError, "simulated inputs of %zu bytes cannot be mapped", mapped_);
  std::abort();
}

size_t Contributions::window_of(uint32_t rank) const {
  return mix64(mix64(shape_.op) + rank) % (kPeriod / 64) * 64;
}

Slice Contributions::input(uint32_t rank, size_t from, size_t bytes) const {
  return {inputs_, window_of(rank) + from, bytes};
}

Slice Contributions::output() const {
  return {std::make_shared<Region>(output_->data(), output_->size(), output_), 0, shape_.bytes};
}

std::shared_ptr<Pages> Contributions::fold() const {
  auto pages = std::make_shared<Pages>(shape_.bytes);
  const size_t part = shape_.bytes / shape_.ranks;
  const InputOf input = [this](uint32_t rank, size_t from, size_t) {
    return numbers_ + window_of(rank) + from;
  };
  for (uint32_t owner = 0; owner < shape_.ranks; owner++) {
    for (size_t at = 0; at < part; at += kPiece) {
      const size_t from = owner * part + at, bytes = std::min(kPiece, part - at);
      const auto some = reduced_of(input, shape_.ranks, shape_.element, shape_.reduction, from,
                                   bytes, shape_.in_turn ? std::optional(owner) : std::nullopt);
      std::copy(some.begin(), some.end(), pages->data() + from);
    }
  }
  return pages;
}

std::string Contributions::verdict(uint32_t rank, const std::byte* have) const {
  const Slice want = result_->stream(rank);
  const auto [a, b] = std::mismatch(want.data(), want.data() + want.length, have);
  if (a == want.data() + want.length) return "";
  return "wrong byte " + std::to_string(a - want.data()) + " of the result of rank " +
         std::to_string(rank) + " in operation " + std::to_string(shape_.op);
}

}  // namespace mcast::sim
