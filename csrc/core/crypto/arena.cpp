// One mapping: a page without rights, the used pages, a page without rights. MADV_WIPEONFORK is
// essential: two processes that seal with one key would use its nonces twice.
//
// Keys are stored in blocks of such pages; all places of a block have one size. Bits beside them
// record which places are taken, and are changed by single instructions. A forked child makes its
// own blocks: the inherited ones are empty, but not locked.
#include "crypto/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "base/log.h"

namespace mcast::crypto {

namespace {

std::atomic<bool> g_unlocked{false};

void note_unlocked(int why) {
  if (g_unlocked.exchange(true)) return;
  log(LogLevel::kWarn,
      "pages with keys cannot be locked in memory (%s): they may be written to swap; raise the "
      "limit (ulimit -l, LimitMEMLOCK=), or encrypt the swap",
      std::generic_category().message(why).c_str());
}

}  // namespace

bool all_secrets_locked() noexcept { return !g_unlocked; }

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
  if (!pages.locked_) note_unlocked(errno);
  return pages;
}

SecretPages::~SecretPages() {
  if (whole_.empty()) return;
  if (!used_.empty()) wipe(used_);
  (void)::munmap(whole_.data(), whole_.size());
}

namespace {

// For each kind: bytes of a place, and places of a block.
struct PlaceKind {
  size_t bytes, count;
};
constexpr PlaceKind kPlaceKinds[] = {{sizeof(Key), 512}, {kCipherPlace, 32}};

}  // namespace

struct internal::SecretBlock {
  static constexpr size_t kWords = 8, kBits = 64;
  static_assert(kPlaceKinds[0].count <= kWords * kBits);

  SecretBlock(SecretPages of, const PlaceKind& places) : pages(std::move(of)), kind(places) {}

  // Takes a free place; null: there is none, or not for this process.
  std::byte* take() noexcept {
    if (owner != ::getpid()) return nullptr;
    for (size_t w = 0; w * kBits < kind.count; w++) {
      uint64_t seen = taken[w].load(std::memory_order_relaxed);
      while (true) {
        const auto bit = static_cast<size_t>(std::countr_one(seen));
        if (bit == kBits || w * kBits + bit >= kind.count) break;
        const uint64_t mine = uint64_t{1} << bit;
        seen = taken[w].fetch_or(mine, std::memory_order_acquire);
        if ((seen & mine) == 0) return pages.bytes().data() + (w * kBits + bit) * kind.bytes;
      }
    }
    return nullptr;
  }
  void give_back(const std::byte* place) noexcept {
    const size_t at = static_cast<size_t>(place - pages.bytes().data()) / kind.bytes;
    taken[at / kBits].fetch_and(~(uint64_t{1} << at % kBits), std::memory_order_release);
  }

  const SecretPages pages;
  const PlaceKind kind;
  const pid_t owner = ::getpid();
  std::array<std::atomic<uint64_t>, kWords> taken{};
  SecretBlock* next = nullptr;
};

namespace {

// All blocks of each kind; and one that may have room.
std::atomic<internal::SecretBlock*> g_blocks[std::size(kPlaceKinds)],
    g_roomy[std::size(kPlaceKinds)];

}  // namespace

Result<SecretPlace> SecretPlace::make(Kind which) {
  using internal::SecretBlock;
  const PlaceKind& kind = kPlaceKinds[static_cast<size_t>(which)];
  std::atomic<SecretBlock*>& all = g_blocks[static_cast<size_t>(which)];
  std::atomic<SecretBlock*>& roomy = g_roomy[static_cast<size_t>(which)];
  SecretBlock* block = roomy.load(std::memory_order_acquire);
  std::byte* place = block == nullptr ? nullptr : block->take();
  SecretBlock* other = place == nullptr ? all.load(std::memory_order_acquire) : nullptr;
  for (; place == nullptr && other != nullptr; other = other->next) {
    block = other;
    place = block->take();
  }
  if (place == nullptr) {
    Result<SecretPages> pages = SecretPages::make(kind.count * kind.bytes);
    if (!pages.ok()) return pages.status();
    block = new SecretBlock(std::move(pages).value(), kind);
    place = block->take();  // before other threads see the block
    block->next = all.load(std::memory_order_relaxed);
    while (!all.compare_exchange_weak(block->next, block, std::memory_order_release,
                                      std::memory_order_relaxed)) {
    }
  }
  roomy.store(block, std::memory_order_release);
  return SecretPlace({place, kind.bytes}, block);
}

SecretPlace::~SecretPlace() {
  if (block_ == nullptr) return;
  wipe(bytes_);
  block_->give_back(bytes_.data());
}

}  // namespace mcast::crypto
