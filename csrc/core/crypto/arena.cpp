// One mapping: a page without rights, the pages that are used, a page without rights. The kernel's
// MADV_WIPEONFORK is no nicety: two processes that seal with one key would use its nonces twice.
#include "crypto/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "crypto/key.h"

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

}  // namespace mcast::crypto
