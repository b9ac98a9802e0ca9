// A ledger compares only the first and the last word of a placed chunk: checksums have been
// verified already, so the only question is whether it is the right chunk. Every 64 bytes have a
// bit, which may be set once.
#include "sim/network/content.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/rng.h"

namespace mcast::sim {

namespace {

constexpr std::byte kGuardByte{0xA5}, kGone{0xDD};

uint64_t word(uint64_t op, uint32_t root, size_t index) {
  return mix64(op * 0x9e3779b97f4a7c15ULL + root * 0xd1b54a32d192ed03ULL + index);
}

}  // namespace

void fill_pattern(uint64_t op, uint32_t root, Bytes out, size_t from) {
  size_t i = 0;
  const auto part_of_word = [&](size_t skipped) {
    const uint64_t w = word(op, root, (from + i) / 8);
    const size_t n = std::min(8 - skipped, out.size() - i);
    std::memcpy(out.data() + i, reinterpret_cast<const std::byte*>(&w) + skipped, n);
    i += n;
  };
  if (from % 8 != 0) part_of_word(from % 8);
  // Whole words in a loop of their own: copies of unknown length took a third of a swarm's time.
  for (; i + 8 <= out.size(); i += 8) {
    const uint64_t w = word(op, root, (from + i) / 8);
    std::memcpy(out.data() + i, &w, 8);
  }
  if (i < out.size()) part_of_word(0);
}

size_t check_pattern(uint64_t op, uint32_t root, ConstBytes bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t have;
    std::memcpy(&have, bytes.data() + i, 8);
    if (have != word(op, root, i / 8)) break;
  }
  for (; i < bytes.size(); i++) {
    const uint64_t w = word(op, root, i / 8);
    if (bytes[i] != reinterpret_cast<const std::byte*>(&w)[i % 8]) break;
  }
  return i;
}

Pages::Pages(size_t size) : size_(size) {
  mapped_ = size + 2 * kGuard;  // the kernel rounds it up to pages
  void* const at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    log(LogLevel::kError, "cannot allocate the %zu bytes that a simulated rank needs", mapped_);
    std::abort();
  }
  base_ = static_cast<std::byte*>(at);
  std::fill_n(base_, kGuard, kGuardByte);
  std::fill_n(base_ + kGuard + size_, kGuard, kGuardByte);
}

Pages::~Pages() { munmap(base_, mapped_); }

bool Pages::intact() const {
  const auto guard = [](std::byte b) { return b == kGuardByte; };
  return std::all_of(base_, base_ + kGuard, guard) &&
         std::all_of(base_ + kGuard + size_, base_ + 2 * kGuard + size_, guard);
}

void Pages::give_back(bool gathered) {
  std::fill_n(base_, 2 * kGuard + size_, kGone);
  mprotect(base_, mapped_, gathered ? PROT_READ : PROT_NONE);
}

Reference::Reference(uint64_t op, uint32_t streams, size_t block, uint32_t root)
    : op_(op),
      streams_(streams),
      root_(root),
      block_(block),
      pages_(std::make_shared<Pages>(streams * block)),
      region_(std::make_shared<Region>(pages_->data(), pages_->size(), pages_)) {
  for (uint32_t s = 0; s < streams_; s++) {
    fill_pattern(op_, streams_ == 1 ? root_ : s, pages_->bytes().subspan(s * block_, block_));
  }
}

Reference::Reference(std::shared_ptr<Pages> pages, uint32_t streams)
    : op_(0),
      streams_(streams),
      root_(0),
      block_(pages->size() / streams),
      pages_(std::move(pages)),
      region_(std::make_shared<Region>(pages_->data(), pages_->size(), pages_)) {}

Slice Reference::stream(uint32_t s) const { return {region_, s * block_, block_}; }

bool Reference::intact() const {
  if (!pages_->intact()) return false;
  for (uint32_t s = 0; s < streams_; s++) {
    if (check_pattern(op_, streams_ == 1 ? root_ : s, stream(s).bytes()) != block_) return false;
  }
  return true;
}

Ledger::Ledger(std::shared_ptr<const Reference> reference, uint32_t own)
    : reference_(std::move(reference)),
      own_(own),
      words_((reference_->block() + kUnit * 64 - 1) / (kUnit * 64)),
      placed_(reference_->streams() * words_) {}

void Ledger::place(uint32_t stream, uint64_t offset, ConstBytes bytes) {
  if (bytes.empty() || !wrong_.empty()) return;
  const auto at = [&] {
    return std::to_string(bytes.size()) + " bytes of block " + std::to_string(stream) + " from " +
           std::to_string(offset);
  };
  const bool inside = stream < reference_->streams() && stream != own_ &&
                      offset + bytes.size() <= reference_->block() && offset % kUnit == 0;
  if (!inside) {
    wrong_ = "placed where nothing belongs: " + at();
    return;
  }
  const std::byte* const want = reference_->stream(stream).data() + offset;
  const size_t some = std::min<size_t>(8, bytes.size()), last = bytes.size() - some;
  if (std::memcmp(want, bytes.data(), some) != 0 ||
      std::memcmp(want + last, bytes.data() + last, some) != 0) {
    wrong_ = "placed in the wrong place: " + at();
    return;
  }
  uint64_t* const placed = placed_.data() + stream * words_;
  const size_t end = (offset + bytes.size() + kUnit - 1) / kUnit;
  for (size_t unit = offset / kUnit; unit < end;) {
    const size_t bit = unit % 64, count = std::min<size_t>(64 - bit, end - unit);
    const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit;
    if ((placed[unit / 64] & mask) != 0) {
      wrong_ = "placed twice: " + at();
      return;
    }
    placed[unit / 64] |= mask;
    unit += count;
  }
  bytes_ += bytes.size();
}

std::string Ledger::verdict() const {
  if (!wrong_.empty()) return wrong_;
  const uint64_t own = own_ < reference_->streams() ? 1 : 0;
  const uint64_t all = (reference_->streams() - own) * reference_->block();
  return bytes_ == all ? ""
                       : std::to_string(all - bytes_) + " of " + std::to_string(all) +
                             " bytes have not arrived";
}

}  // namespace mcast::sim
