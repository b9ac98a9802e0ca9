// First fit from the lowest address: recently used memory has low addresses. Pages of released
// blocks are kept for reuse, up to the amount in use (a training step needs the same again), then
// returned to the system.
//
// A forked child maps the pages privately at the same place: it sees their contents, and its own
// writes stay private. Unlike after a plain fork it may also see later writes of the parent, in
// pages that it has not written itself: writes into blocks that both have, but not into new ones,
// whose memory was not part of a block when the child was forked. A child's life is detected
// through a pipe whose writing end only the child and its own children hold.
#include "shm/arena_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>

namespace mcast {
namespace {

constexpr size_t kAlwaysKept = size_t{256} << 20;
#ifndef MADV_POPULATE_WRITE
constexpr int kPopulate = 23;
#else
constexpr int kPopulate = MADV_POPULATE_WRITE;
#endif

// Pools of the process: the current one, and the newest of all.
std::atomic<ArenaPool*> current{nullptr}, newest{nullptr};
std::mutex opening;

size_t whole_pages(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + ArenaPool::kPage - 1) / ArenaPool::kPage * ArenaPool::kPage;
}

bool never_overcommits() {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  return (file >> mode) && mode == 2;
}

// Address space for one pool: as much as the machine has memory, but at most a quarter of this
// process's limit, and leaving room for the pools of the other ranks of the host.
size_t room_for_pool() {
  size_t bytes = ArenaPool::memory_of_machine();
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min<size_t>(bytes, limit.rlim_cur / 4);
  }
  const char* const ranks = std::getenv("LOCAL_WORLD_SIZE");
  const size_t others = ranks != nullptr ? std::strtoul(ranks, nullptr, 10) : 1;
  bytes = std::min(bytes, (size_t{64} << 40) / std::clamp<size_t>(others, 1, 4096));
  return whole_pages(bytes);
}

}  // namespace

Result<std::unique_ptr<ArenaPool>> ArenaPool::create(size_t bytes) {
  Result<Segment> memory = Segment::create("torch-mcast tensors", bytes);
  if (!memory.ok()) return memory.status();
  // A child inherits the mapping until it has replaced it by its own: another mapping that it makes
  // before could fill a hole there.
  (void)::madvise(memory->data(), bytes, MADV_DOFORK);
  // On systems that give huge pages to shared memory on request.
  (void)::madvise(memory->data(), bytes, MADV_HUGEPAGE);
  return std::unique_ptr<ArenaPool>(new ArenaPool(std::move(memory).value()));
}

Result<ArenaPool*> ArenaPool::open_for_process() {
  const std::lock_guard<std::mutex> one(opening);
  if (ArenaPool* const there = of_process()) return there;
  if (never_overcommits()) {
    return Status(Code::kUnavailable,
                  "no arena pool where vm.overcommit_memory is 2: forks would fail");
  }
  auto made = create(room_for_pool());
  if (!made.ok()) return made.status();
  if (newest.load() == nullptr) ::pthread_atfork(before_fork, after_fork, in_child);
  ArenaPool* const pool = made->release();  // tensors may outlive everything else
  pool->older_ = newest;
  newest = pool;
  current = pool;
  return pool;
}

size_t ArenaPool::memory_of_machine() noexcept {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || size <= 0) return size_t{1} << 34;
  return whole_pages(static_cast<size_t>(pages) * static_cast<size_t>(size));
}

ArenaPool* ArenaPool::of_process() noexcept { return current; }

void ArenaPool::before_fork() noexcept {
  opening.lock();
  if (ArenaPool* const pool = current) {
    pool->mutex_.lock();
    pool->prepare_fork();
  }
}

void ArenaPool::after_fork() noexcept {
  if (ArenaPool* const pool = current) {
    pool->note_child();
    pool->mutex_.unlock();
  }
  opening.unlock();
}

void ArenaPool::prepare_fork() noexcept {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  child_reads_ = Fd(ends[0]);
  child_holds_ = Fd(ends[1]);
}

// (A failed fork looks like a child that has ended.)
void ArenaPool::note_child() noexcept try {
  child_holds_.reset();
  settle();
  children_.push_back({std::move(child_reads_), ++forks_});
} catch (const std::bad_alloc&) {
  // Out of memory: this child counts as one that never ends.
  child_reads_.reset();
  if (!children_.empty()) {
    children_.back().alive.reset();
    children_.back().number = forks_;
  }
}

bool ArenaPool::mapped_by_children(uint64_t born) const noexcept {
  return !children_.empty() && children_.back().number > born;
}

void ArenaPool::settle() {
  std::erase_if(children_, [](const Child& child) {
    pollfd one{child.alive.get(), 0, 0};
    return child.alive.valid() && ::poll(&one, 1, 0) == 1 && (one.revents & POLLHUP) != 0;
  });
  std::erase_if(withheld_, [this](const Withheld& one) {
    if (mapped_by_children(one.born)) return false;
    give_back(one.at, one.bytes);
    return true;
  });
}

void ArenaPool::give_back(uint64_t at, size_t bytes) {
  kept_ += bytes;
  free_.give_back(at, {bytes, bytes});
}

void ArenaPool::in_child() noexcept {
  if (ArenaPool* const pool = current.exchange(nullptr)) {
    pool->remap();
    pool->mutex_.unlock();
  }
  opening.unlock();
}

void ArenaPool::remap() noexcept {
  uint64_t from = 0;
  const auto map = [&](uint64_t begin, uint64_t end) {
    if (begin == end) return;
    if (::mmap(memory_.data() + begin, end - begin, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, memory_.fd(),
               static_cast<off_t>(begin)) != MAP_FAILED) {
      return;
    }
    // The child would write into its parent's tensors.
    constexpr std::string_view kWhy =
        "torch-mcast: a forked child cannot get its own copy of mapped tensors\n";
    (void)!::write(STDERR_FILENO, kWhy.data(), kWhy.size());
    ::_exit(127);
  };
  for (const auto& [begin, end] : private_) {  // private pages are inherited like other memory
    map(from, begin);
    from = end;
  }
  map(from, memory_.size());
  forked_ = true;
  // This process keeps its writing end as long as it has the mapping.
  child_reads_.reset();
  children_.clear();
}

bool ArenaPool::release_any(std::byte* data) noexcept {
  for (ArenaPool* pool = newest; pool != nullptr; pool = pool->older_) {
    if (pool->release(data)) return true;
  }
  return false;
}

std::byte* ArenaPool::allocate(size_t bytes) noexcept try {
  if (bytes > memory_.size()) return nullptr;
  const size_t asked = std::max<size_t>(bytes, 1);
  bytes = whole_pages(bytes);
  const std::lock_guard<std::mutex> held(mutex_);
  if (forked_) return nullptr;
  if (!withheld_.empty()) settle();
  const auto taken = free_.take(bytes);
  if (!taken) return nullptr;
  blocks_[taken->at] = {.bytes = bytes, .asked = asked, .born = forks_};
  kept_ -= taken->touched;
  in_use_ += bytes;
  return memory_.data() + taken->at;
} catch (const std::bad_alloc&) {
  return nullptr;
}

bool ArenaPool::inside(const std::byte* data, size_t bytes) const noexcept {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(memory_.data());
  return at >= base && at - base <= memory_.size() && bytes <= memory_.size() - (at - base);
}

bool ArenaPool::release(std::byte* data) noexcept {
  if (!inside(data, 0)) return false;
  const std::lock_guard<std::mutex> held(mutex_);
  if (forked_) return true;
  const auto at = static_cast<uint64_t>(data - memory_.data());
  const auto block = blocks_.find(at);
  if (block == blocks_.end()) return true;
  const size_t bytes = block->second.bytes;
  const uint64_t born = block->second.born;
  blocks_.erase(block);
  in_use_ -= bytes;
  // Address space of private pages is not used again: others may still write to the shared pages
  // behind.
  const auto lost = private_.lower_bound(at);
  if (lost != private_.end() && lost->first < at + bytes) {
    (void)::madvise(data, bytes, MADV_DONTNEED);
    (void)::fallocate(memory_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(at), static_cast<off_t>(bytes));
    return true;
  }
  if (mapped_by_children(born)) {
    withheld_.push_back({at, bytes, born});
    settle();
  } else {
    give_back(at, bytes);
  }
  trim();
  return true;
}

// Trims from the top, since low addresses are allocated first.
void ArenaPool::trim() {
  const auto few = [this] { return kept_ <= std::max(kAlwaysKept, in_use_); };
  free_.untouch(few, [this](uint64_t at, const FreeRanges::Range& range) {
    if (::madvise(memory_.data() + at, range.bytes, MADV_REMOVE) != 0) return false;
    kept_ -= range.touched;
    return true;
  });
}

std::optional<uint64_t> ArenaPool::offset_of(const std::byte* data, size_t bytes) const noexcept {
  if (!inside(data, bytes)) return std::nullopt;
  const auto at = static_cast<uint64_t>(data - memory_.data());
  const std::lock_guard<std::mutex> held(mutex_);
  if (forked_) return std::nullopt;
  auto lost = private_.upper_bound(at);
  if (lost != private_.begin() && std::prev(lost)->second > at) return std::nullopt;
  if (lost != private_.end() && lost->first < at + bytes) return std::nullopt;
  return at;
}

void ArenaPool::populate(const std::byte* data, size_t bytes) noexcept {
  if (!inside(data, bytes) || bytes == 0) return;
  const auto at = static_cast<uint64_t>(data - memory_.data());
  const uint64_t begin = at / kPage * kPage, end = begin + whole_pages(at + bytes - begin);
  {
    const std::lock_guard<std::mutex> held(mutex_);
    auto block = blocks_.upper_bound(at);
    if (block == blocks_.begin()) return;
    Block& b = (--block)->second;
    if (end > block->first + b.bytes || (begin >= b.filled && end <= b.filled_to)) return;
    const bool joins = b.filled < b.filled_to && begin <= b.filled_to && end >= b.filled;
    b.filled = joins ? std::min(b.filled, begin) : begin;
    b.filled_to = joins ? std::max(b.filled_to, end) : end;
  }
  (void)::madvise(memory_.data() + begin, end - begin, kPopulate);
}

// Other threads may write at any time to data that shares a page with a slice, and merging two
// copies of such a page could not tell which value of a word is newer. So these pages are never
// exchanged, and operations do not lend them (client_staging.cpp).
bool ArenaPool::alone(uint64_t at, size_t bytes) const noexcept {
  if (at % kPage != 0) return false;
  if ((at + bytes) % kPage == 0) return true;
  const auto next = blocks_.upper_bound(at + bytes);
  if (next == blocks_.begin()) return false;
  const auto& [begin, block] = *std::prev(next);
  return begin + block.asked == at + bytes;
}

bool ArenaPool::has_pages_alone(const std::byte* data, size_t bytes) const noexcept {
  if (!inside(data, bytes)) return false;
  const std::lock_guard<std::mutex> held(mutex_);
  return alone(static_cast<uint64_t>(data - memory_.data()), bytes);
}

bool ArenaPool::make_private(std::byte* data, size_t bytes) noexcept {
  if (bytes == 0 || !inside(data, bytes)) return true;
  const std::lock_guard<std::mutex> held(mutex_);
  const auto at = static_cast<uint64_t>(data - memory_.data());
  if (!alone(at, bytes)) return false;
  uint64_t begin = at, end = at + whole_pages(bytes);
  // Pages that are private already stay as they are.
  if (const auto first = private_.upper_bound(begin);
      first != private_.begin() && std::prev(first)->second > begin) {
    begin = std::min(std::prev(first)->second, end);
  }
  if (const auto last = private_.lower_bound(end);
      last != private_.begin() && std::prev(last)->second >= end) {
    end = std::max(std::prev(last)->first, begin);
  }
  if (begin == end) return true;
  void* const copy = ::mmap(nullptr, end - begin, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, memory_.data() + begin, end - begin);
  if (::mremap(copy, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED,
               memory_.data() + begin) == MAP_FAILED) {
    ::munmap(copy, end - begin);
    return false;
  }
  for (auto it = private_.begin(); it != private_.end();) {  // merge with adjacent ranges
    if (it->second < begin || it->first > end) {
      ++it;
      continue;
    }
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = private_.erase(it);
  }
  private_[begin] = end;
  return true;
}

size_t ArenaPool::in_use() const noexcept {
  const std::lock_guard<std::mutex> held(mutex_);
  return in_use_;
}

size_t ArenaPool::kept() const noexcept {
  const std::lock_guard<std::mutex> held(mutex_);
  return kept_;
}

}  // namespace mcast
