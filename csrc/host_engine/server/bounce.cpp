// Blocks are mapped one by one, in slightly rounded sizes, so that a kept block serves the next
// operation of about that size. Kept blocks count like blocks in use; if a user's account is full,
// all of them are released before a request is refused.
//
// Locks: the account's, then a pool's. A pool calls its account without holding its own lock.
#include "host_engine/server/bounce.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "base/huge_pages.h"
#include "base/units.h"

namespace mcast::service {
namespace {

constexpr uint64_t kSmallStep = uint64_t{64} << 10, kLargeStep = uint64_t{2} << 20;
constexpr uint64_t kLarge = uint64_t{4} << 20;

uint64_t block_size(uint64_t bytes) {
  const uint64_t step = bytes >= kLarge ? kLargeStep : kSmallStep;
  return (bytes + step - 1) / step * step;
}

}  // namespace

std::shared_ptr<BounceAccount> BounceAccount::of(uid_t user) {
  static std::mutex mutex;
  static auto& accounts = *new std::map<uid_t, std::weak_ptr<BounceAccount>>;
  const std::lock_guard<std::mutex> held(mutex);
  std::erase_if(accounts, [](const auto& one) { return one.second.expired(); });
  auto account = accounts[user].lock();
  if (!account) accounts[user] = account = std::make_shared<BounceAccount>(user);
  return account;
}

bool BounceAccount::try_take(uint64_t bytes, uint64_t limit) {
  uint64_t used = used_;
  do {
    if (bytes > limit || used > limit - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

Status BounceAccount::take(uint64_t bytes, uint64_t limit) {
  if (try_take(bytes, limit)) return {};
  {
    const std::lock_guard<std::mutex> held(mutex_);
    for (BouncePool* const pool : pools_) pool->drop_kept();
  }
  if (try_take(bytes, limit)) return {};
  return Status(Code::kResourceExhausted, "engine's limit of " + size_text(limit) +
                                              " for copies of user " + std::to_string(user_) +
                                              "'s tensors (--bounce) is reached");
}

Status BounceAccount::may_move() const {
  if (hung_ < kMostHung) return {};
  return Status(Code::kUnavailable, "memory of " + std::to_string(hung_.load()) +
                                        " processes of user " + std::to_string(user_) +
                                        " does not answer (swap, FUSE, userfaultfd)");
}

void BounceAccount::join(BouncePool* pool) {
  const std::lock_guard<std::mutex> held(mutex_);
  pools_.insert(pool);
}

void BounceAccount::leave(BouncePool* pool) {
  const std::lock_guard<std::mutex> held(mutex_);
  pools_.erase(pool);
}

BouncePool::BouncePool(std::shared_ptr<BounceAccount> account, uint64_t limit)
    : account_(std::move(account)), limit_(limit) {
  account_->join(this);
}

BouncePool::~BouncePool() {
  account_->leave(this);
  drop_kept();
}

Result<std::shared_ptr<std::byte>> BouncePool::take(uint64_t bytes) {
  const uint64_t size = block_size(bytes);
  Block block = size < bytes ? Block{nullptr, 0} : take_kept(size);
  if (block.data == nullptr) {
    if (Status may = account_->take(size < bytes ? bytes : size, limit_); !may.ok()) return may;
    void* const data =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      const Status why = Status::system(errno, "memory for copies of tensors");
      account_->give_back(size);
      return why;
    }
    block = {static_cast<std::byte*>(data), size};
    bytes_ += size;
    advise_huge({block.data, block.bytes});
  }
  return std::shared_ptr<std::byte>(
      block.data, [pool = shared_from_this(), block](std::byte*) { pool->give_back(block); });
}

BouncePool::Block BouncePool::take_kept(uint64_t bytes) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto it = kept_.lower_bound(bytes);
  if (it == kept_.end() || it->first / 2 > bytes) return {nullptr, 0};
  const Block block = it->second;
  kept_.erase(it);
  kept_bytes_ -= block.bytes;
  return block;
}

void BouncePool::give_back(Block block) {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (kept_bytes_ + block.bytes <= kMostKept) {
      kept_.emplace(block.bytes, block);
      kept_bytes_ += block.bytes;
      return;
    }
  }
  unmap(block);
}

void BouncePool::drop_kept() {
  std::multimap<uint64_t, Block> dropped;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    dropped.swap(kept_);
    kept_bytes_ = 0;
  }
  for (const auto& [bytes, block] : dropped) unmap(block);
}

void BouncePool::unmap(Block block) {
  (void)::munmap(block.data, block.bytes);
  bytes_ -= block.bytes;
  account_->give_back(block.bytes);
}

}  // namespace mcast::service
