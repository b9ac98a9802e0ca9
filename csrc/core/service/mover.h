// Copies between one client's memory and the engine's, on a thread of its own: a page of the client
// may never come, and then nothing else waits for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "service/bounce.h"
#include "service/client_memory.h"
#include "service/transfer.h"

namespace mcast::service {

// Thread-safe.
class Mover : public std::enable_shared_from_this<Mover> {
 public:
  // `opened` is called once, on the mover's thread, which also looks at the offer: that may hang.
  // Not ok: no thread can be had.
  using Opened = std::function<void(const Result<ipc::Memory>&)>;
  static Result<std::shared_ptr<Mover>> start(const ipc::MemoryOffer& offer,
                                              ClientMemory::Client client, Fd file,
                                              std::shared_ptr<BouncePool> pool, Opened opened);

  // Ok: it is open, and no call of it hangs.
  Status usable() const;
  BouncePool& pool() { return *pool_; }

  // From here on it copies what is due. The transfer may have ended already.
  void submit(const std::shared_ptr<Transfer>& transfer);
  void allow(const std::shared_ptr<Transfer>& transfer, uint32_t input, uint64_t bytes);
  void mark(const std::shared_ptr<Transfer>& transfer, uint32_t output, uint64_t bytes);
  // The operation has ended for its group. finish() follows, once what is final has been copied and
  // no call touches its memory; soon where it has failed.
  void end(const std::shared_ptr<Transfer>& transfer, const Status& status);

  // Calls `act` when all transfers of the group that have ended for it by now have told their
  // finish(): at once, or on the thread of the last of them.
  void after(uint32_t group, std::function<void()> act);
  // Waits until nothing of the group is left.
  void settle(uint32_t group, Nanos deadline);
  // A call that takes longer than half of the operation's timeout (half a second at least) hangs:
  // what is in flight fails, in all groups of the client. To be asked often, by the tenant's
  // thread.
  void check(Nanos now);
  // The last call. A thread that hangs is left to itself: it touches nothing but what it owns.
  void retire();

  struct Report {
    std::optional<ipc::MemoryRoad> road;
    uint64_t pulled = 0, pushed = 0;  // bytes
    bool hangs = false;
  };
  Report report() const;

 private:
  struct Call {
    std::shared_ptr<Transfer> transfer;  // null: the offer is being looked at
    Transfer::Way way = Transfer::kPull;
    std::vector<CopyList::Copied> batch;
    Nanos since = 0, limit = 0;
  };
  // What is to be called with no lock held.
  using Later = std::vector<std::function<void()>>;

  Mover(ClientMemory::Client client, std::shared_ptr<BouncePool> pool)
      : client_(client), pool_(std::move(pool)) {}
  void run(const ipc::MemoryOffer& offer, Fd file, const Opened& opened);
  std::unique_ptr<ClientMemory> open(const ipc::MemoryOffer& offer, Fd file, const Opened& opened);
  // All of these: mutex_ held.
  void begin(Call call);
  void end_call();
  void enqueue(const std::shared_ptr<Transfer>& transfer);
  bool take(Call& call, std::vector<ClientMemory::Span>& spans);
  void moved(const Call& call, ClientMemory::Moved how, Later& later);
  void break_off(Transfer& transfer, const Status& why, Later& later);
  void finish_if_over(const std::shared_ptr<Transfer>& transfer, Later& later);
  void told(const std::shared_ptr<Transfer>& transfer);  // no lock held
  bool in_call(const Transfer& transfer) const;

  const ClientMemory::Client client_;
  const std::shared_ptr<BouncePool> pool_;
  std::thread thread_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable work_, news_;
  std::set<std::shared_ptr<Transfer>> live_;     // submitted and not finished
  std::set<std::shared_ptr<Transfer>> telling_;  // whose finish() has not returned
  struct Waiting {
    std::set<std::shared_ptr<Transfer>> on;
    std::function<void()> act;
  };
  std::deque<Waiting> waiting_;
  std::deque<std::shared_ptr<Transfer>> due_[2];  // by way
  Transfer::Way last_ = Transfer::kPush;
  std::optional<Call> call_;  // that is being carried out
  bool hangs_ = false;        // that one
  bool stopping_ = false, over_ = false;
  std::optional<ipc::MemoryRoad> road_;  // once it is open
  uint64_t moved_[2] = {0, 0};           // bytes, by way
};

}  // namespace mcast::service
