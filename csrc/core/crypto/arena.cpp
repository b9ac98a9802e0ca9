// One mapping: a page without rights, the pages that are used, a page without rights. The kernel's
// MADV_WIPEONFORK is no nicety: two processes that seal with one key would use its nonces twice.
//
// Keys lie in blocks of such pages; which places are taken is noted beside them, in bits that are
// changed by single instructions. A forked child makes blocks of its own: what it inherited is
// empty, but not locked.
#include "crypto/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>

namespace mcast::crypto {

Result<SecretPages> SecretPages::make(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t room = (size + page - 1) / page * page;
  void* const at = ::mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Status::system(errno, "pages for secrets");
  SecretPages pages;
  pages.whole_ = {static_cast<std::byte*>(at), room + 2 * page};
  std::byte* const used = pages.whole_.data() + page;
  if (::mprotect(used, room, PROT_READ | PROT_WRITE) != 0 ||
      ::madvise(used, room, MADV_DONTDUMP) != 0 || ::madvise(used, room, MADV_WIPEONFORK) != 0) {
    return Status(
        Code::kUnavailable,
        Status::system(errno, "pages for secrets (MADV_DONTDUMP, MADV_WIPEONFORK)").message());
  }
  pages.used_ = {used, size};
  pages.locked_ = ::mlock(used, room) == 0;
  return pages;
}

SecretPages::~SecretPages() {
  if (whole_.empty()) return;
  if (!used_.empty()) wipe(used_);
  (void)::munmap(whole_.data(), whole_.size());
}

struct internal::KeyBlock {
  static constexpr size_t kWords = 8, kBits = 64;  // 16 KiB of keys

  explicit KeyBlock(SecretPages of) : pages(std::move(of)) {}

  // A place that nobody has; null: there is none, or not for this process.
  std::byte* take() noexcept {
    if (owner != ::getpid()) return nullptr;
    for (size_t w = 0; w < kWords; w++) {
      uint64_t seen = taken[w].load(std::memory_order_relaxed);
      while (seen != ~uint64_t{0}) {
        const auto bit = static_cast<size_t>(std::countr_one(seen));
        const uint64_t mine = uint64_t{1} << bit;
        seen = taken[w].fetch_or(mine, std::memory_order_acquire);
        if ((seen & mine) == 0) return pages.bytes().data() + (w * kBits + bit) * sizeof(Key);
      }
    }
    return nullptr;
  }
  void give_back(const std::byte* place) noexcept {
    const size_t at = static_cast<size_t>(place - pages.bytes().data()) / sizeof(Key);
    taken[at / kBits].fetch_and(~(uint64_t{1} << at % kBits), std::memory_order_release);
  }

  const SecretPages pages;
  const pid_t owner = ::getpid();
  std::array<std::atomic<uint64_t>, kWords> taken{};
  KeyBlock* next = nullptr;
};

namespace {

// All that there are; and one that may have room.
std::atomic<internal::KeyBlock*> g_key_blocks{nullptr}, g_roomy_block{nullptr};

}  // namespace

Result<SecretKey> SecretKey::make(Key key) {
  using internal::KeyBlock;
  KeyBlock* block = g_roomy_block.load(std::memory_order_acquire);
  std::byte* place = block == nullptr ? nullptr : block->take();
  KeyBlock* other = place == nullptr ? g_key_blocks.load(std::memory_order_acquire) : nullptr;
  for (; place == nullptr && other != nullptr; other = other->next) {
    block = other;
    place = block->take();
  }
  if (place == nullptr) {
    Result<SecretPages> pages = SecretPages::make(KeyBlock::kWords * KeyBlock::kBits * sizeof(Key));
    if (!pages.ok()) return pages.status();
    block = new KeyBlock(std::move(pages).value());
    place = block->take();  // before others see it
    block->next = g_key_blocks.load(std::memory_order_relaxed);
    while (!g_key_blocks.compare_exchange_weak(block->next, block, std::memory_order_release,
                                               std::memory_order_relaxed)) {
    }
  }
  g_roomy_block.store(block, std::memory_order_release);
  return SecretKey(new (place) Key(std::move(key)), block);
}

SecretKey::~SecretKey() {
  if (key_ == nullptr) return;
  key_->~Key();  // which wipes it
  block_->give_back(reinterpret_cast<const std::byte*>(key_));
}

}  // namespace mcast::crypto
