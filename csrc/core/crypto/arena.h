// Pages for secrets: private, in no core dump, empty in a forked child, locked into memory if that
// is allowed, with inaccessible pages on both sides, and wiped before they are returned. A debugger
// of the same user and root can still read them.
//
// SecretPages, SecretBox and SecretKey: one owner, any thread.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include "base/status.h"
#include "base/types.h"
#include "crypto/key.h"

namespace mcast::crypto {

class SecretPages {
 public:
  // The pages contain zeros. kUnavailable: the kernel cannot keep pages out of children or dumps.
  static Result<SecretPages> make(size_t size);
  SecretPages() = default;
  SecretPages(SecretPages&& other) noexcept
      : whole_(std::exchange(other.whole_, {})),
        used_(std::exchange(other.used_, {})),
        locked_(std::exchange(other.locked_, false)) {}
  SecretPages& operator=(SecretPages&& other) noexcept {
    std::swap(whole_, other.whole_);
    std::swap(used_, other.used_);
    std::swap(locked_, other.locked_);
    return *this;
  }
  ~SecretPages();

  Bytes bytes() const noexcept { return used_; }
  // Returns true if the pages are never written to a swap device. Users may have a limit on
  // locking.
  bool locked() const noexcept { return locked_; }

 private:
  Bytes whole_;  // including the guard pages
  Bytes used_;
  bool locked_ = false;
};

// A T in such pages.
template <typename T>
class SecretBox {
 public:
  template <typename... Arguments>
  static Result<SecretBox> make(Arguments&&... arguments) {
    static_assert(alignof(T) <= 4096);
    Result<SecretPages> pages = SecretPages::make(sizeof(T));
    if (!pages.ok()) return pages.status();
    T* const value = new (pages->bytes().data()) T(std::forward<Arguments>(arguments)...);
    return SecretBox(std::move(pages).value(), value);
  }
  T& operator*() const noexcept { return *value_; }
  T* operator->() const noexcept { return value_.get(); }

 private:
  struct Destroy {
    void operator()(T* value) const noexcept { value->~T(); }
  };
  SecretBox(SecretPages pages, T* value) : pages_(std::move(pages)), value_(value) {}
  SecretPages pages_;
  std::unique_ptr<T, Destroy> value_;  // destroyed before its pages
};

namespace internal {
struct SecretBlock;
}  // namespace internal

inline constexpr size_t kCipherPlace = 2048;

// A place of one of two sizes in pages that it shares with others: a group has keys for each sender
// and connections have more, and one mapping each, with its guards, would exceed a process's limit
// of mappings. The process keeps the pages for later use. Wiped when destroyed. make() and the
// destructor take no lock, so a concurrent fork does no harm.
class SecretPlace {
 public:
  enum class Kind : uint8_t { kKey, kCipher };  // sizeof(Key), kCipherPlace; aligned likewise
  // Errors as of SecretPages::make().
  static Result<SecretPlace> make(Kind kind);
  SecretPlace() = default;  // none
  SecretPlace(SecretPlace&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), block_(std::exchange(other.block_, nullptr)) {}
  SecretPlace& operator=(SecretPlace&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(block_, other.block_);
    return *this;
  }
  ~SecretPlace();

  Bytes bytes() const noexcept { return bytes_; }

 private:
  SecretPlace(Bytes bytes, internal::SecretBlock* block) noexcept : bytes_(bytes), block_(block) {}
  Bytes bytes_;
  internal::SecretBlock* block_ = nullptr;
};

// A Key in such a place.
class SecretKey {
 public:
  // Errors as of SecretPages::make().
  static Result<SecretKey> make(Key key) {
    Result<SecretPlace> place = SecretPlace::make(SecretPlace::Kind::kKey);
    if (!place.ok()) return place.status();
    return SecretKey(std::move(place).value(), std::move(key));
  }
  SecretKey() = default;  // none

  Key& operator*() const noexcept {
    return *std::launder(reinterpret_cast<Key*>(place_.bytes().data()));
  }

 private:
  SecretKey(SecretPlace place, Key key) noexcept : place_(std::move(place)) {
    new (place_.bytes().data()) Key(std::move(key));
  }
  SecretPlace place_;  // wipes the key when destroyed
};

// Returns false once pages of this process could not be locked in memory, which is logged the first
// time: their keys may be written to swap.
bool all_secrets_locked() noexcept;

}  // namespace mcast::crypto
