// The registered memory of a datagram endpoint: entries for datagrams being sent and for those that
// arrive, and the state of each entry. Takes no decisions; UdEndpoint owns the queue pair.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "transport/verbs/device.h"
#include "transport/verbs/gather.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/multicast.h"

namespace mcast::verbs {

inline constexpr size_t kGrh = 40;           // bytes in front of every received datagram
inline constexpr size_t kSendEntries = 256;  // datagrams being sent
inline constexpr size_t kMostWaiting = kSendEntries / 2;  // of these, for groups without an address
inline constexpr size_t kSendChain = 32;         // datagrams per post, the last one signalled
inline constexpr size_t kReceiveEntries = 4096;  // at most; see ReceiveRing::entries()
inline constexpr size_t kReceiveChain = 32;      // receives per post

// An entry is free, taken (queued for a group), or posted. Datagrams are numbered as they are
// posted; entries below the number that the device reports as done are free again.
class SendRing {
 public:
  Status open(Device& device);
  std::byte* at(size_t entry) const { return memory_.data() + entry * stride_; }
  uint32_t lkey() const { return memory_.lkey(); }

  bool full() const { return free_.empty(); }
  // The entry that the next take() returns; requires !full().
  uint16_t next() const { return free_.front(); }
  // `held`: memory that the datagram uses besides the entry.
  uint16_t take(Gathered held);
  void give_back(uint16_t entry);

  // Number of datagrams posted so far; the next one has this number plus 1.
  uint64_t posted() const { return posted_; }
  void post(uint16_t entry) { order_[posted_++ % kSendEntries] = entry; }
  // Ends a chain: the datagrams posted since the last chain were sent with this handle.
  // `signalled`: the last of them reports its completion.
  void end_chain(std::shared_ptr<AddressHandle> handle, bool signalled);
  bool idle() const { return done_ == posted_; }
  // Frees entries and memory of all datagrams below `number`: none of them is being sent any more.
  void let_go(uint64_t number);
  // Frees datagrams posted behind the last one that reports its completion, once that one is done.
  void let_go_unreported() {
    if (done_ >= signalled_) let_go(posted_);
  }

  // After the queue pair is gone.
  void close();
  void abandon() noexcept;

 private:
  struct Chain {
    uint64_t end;  // number behind the chain's last datagram
    std::shared_ptr<AddressHandle> handle;
  };
  Buffer memory_;
  size_t stride_ = 0;
  uint64_t posted_ = 0, done_ = 0;  // done_ <= posted_
  uint64_t signalled_ = 0;          // the last datagram that reports its completion
  std::array<uint16_t, kSendEntries>
      order_{};               // number % kSendEntries -> its entry, done_ .. posted_
  std::deque<Chain> chains_;  // chains in that range
  std::deque<uint16_t> free_;
  std::array<Gathered, kSendEntries> held_;  // by entry
};

// An entry is posted, arrived (kept until it is handed over), or free to be posted again.
class ReceiveRing {
 public:
  struct Arrival {
    uint32_t entry;
    uint32_t length;  // including the routing header
    bool own;
  };

  // `rcvbuf`: bytes requested. Takes fewer if less memory may be locked.
  Status open(Device& device, uint64_t rcvbuf);
  std::byte* at(uint32_t entry) const { return memory_.data() + entry * stride_; }
  uint32_t lkey() const { return memory_.lkey(); }
  size_t entries() const { return entries_; }

  // The device is done with an entry: a datagram arrived, or the entry is free.
  void arrive(const Arrival& a) {
    --posted_;
    arrived_.push_back(a);
  }
  void flushed(uint32_t entry) {
    --posted_;
    free_.push_back(entry);
  }
  bool any() const { return !arrived_.empty(); }
  Arrival take() {
    const Arrival a = arrived_.front();
    arrived_.pop_front();
    taken_ = at(a.entry);
    return a;
  }
  // The entry taken and not given back so far, with its routing header; null if there is none.
  const std::byte* taken() const { return taken_; }
  void give_back(uint32_t entry) {
    free_.push_back(entry);
    taken_ = nullptr;
  }

  // Entries to be posted; post() takes them off the end.
  const std::vector<uint32_t>& free() const { return free_; }
  // The first `count` of the last `of` free entries were posted.
  void post(size_t count, size_t of);
  bool low() const { return posted_ < entries_ / 4; }
  // For a queue pair that is gone: arrived entries are kept, all others are free.
  void restart();

  void abandon() noexcept { memory_.abandon(); }

 private:
  Buffer memory_;
  size_t stride_ = 0;
  size_t entries_ = 0;
  size_t posted_ = 0;
  std::deque<Arrival> arrived_;
  const std::byte* taken_ = nullptr;
  std::vector<uint32_t> free_;
};

}  // namespace mcast::verbs
