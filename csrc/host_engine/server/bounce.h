// Memory of the engine for operations whose tensors it copies (engine_memory=copy).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/status.h"
#include "base/types.h"

namespace mcast::service {

class BouncePool;

// Memory of all clients of one user. Thread-safe.
class BounceAccount {
 public:
  // The account of this process for `user`.
  static std::shared_ptr<BounceAccount> of(uid_t user);
  explicit BounceAccount(uid_t user) : user_(user) {}

  // kResourceExhausted if the total would exceed `limit`, even after all kept blocks are released.
  Status take(uint64_t bytes, uint64_t limit);
  void give_back(uint64_t bytes) { used_ -= bytes; }
  uint64_t used() const { return used_; }

  // Maximum number of movers that wait for a page of their client for longer than they may.
  static constexpr uint32_t kMostHung = 4;
  void add_hung(int change) { hung_ += static_cast<uint32_t>(change); }
  // Ok if there may be one more mover.
  Status may_move() const;

  void join(BouncePool* pool);
  void leave(BouncePool* pool);

 private:
  bool try_take(uint64_t bytes, uint64_t limit);

  const uid_t user_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint32_t> hung_{0};
  std::mutex mutex_;  // guards the fields below
  std::set<BouncePool*> pools_;
};

// Memory of one client. Returned blocks are kept for the next operations, since their pages are
// allocated; no client gets a block of another. Thread-safe.
class BouncePool : public std::enable_shared_from_this<BouncePool> {
 public:
  static constexpr uint64_t kMostKept = uint64_t{256} << 20;  // bytes

  BouncePool(std::shared_ptr<BounceAccount> account, uint64_t limit);
  ~BouncePool();
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  // Returns pages with undefined contents: they keep their previous bytes. They are returned with
  // the last copy of the pointer.
  Result<std::shared_ptr<std::byte>> take(uint64_t bytes);
  // Returns all kept blocks to the system.
  void drop_kept();
  uint64_t bytes() const { return bytes_; }  // in use and kept
  BounceAccount& account() { return *account_; }

 private:
  struct Block {
    std::byte* data;
    uint64_t bytes;
  };
  Block take_kept(uint64_t bytes);  // a block without data if none fits
  void give_back(Block block);
  void unmap(Block block);

  const std::shared_ptr<BounceAccount> account_;
  const uint64_t limit_;
  std::atomic<uint64_t> bytes_{0};
  std::mutex mutex_;  // guards the fields below
  std::multimap<uint64_t, Block> kept_;
  uint64_t kept_bytes_ = 0;
};

}  // namespace mcast::service
