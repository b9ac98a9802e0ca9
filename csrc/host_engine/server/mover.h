// Copies between one client's memory and the engine's, on a thread of its own: a page of the client
// may never come, and then only this thread waits for it.
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

#include "host_engine/server/bounce.h"
#include "host_engine/server/client_memory.h"
#include "host_engine/server/transfer.h"

namespace mcast::service {

// Thread-safe.
class Mover : public std::enable_shared_from_this<Mover> {
 public:
  // `opened` is called once, on the mover's thread, which also checks the offer, because that may
  // hang. Returns an error if no thread can be started.
  using Opened = std::function<void(const Result<ipc::Memory>&)>;
  static Result<std::shared_ptr<Mover>> start(const ipc::MemoryOffer& offer,
                                              ClientMemory::Client client, Fd file,
                                              std::shared_ptr<BouncePool> pool, Opened opened);

  // Ok if it is open, and no call of it hangs.
  Status usable() const;
  BouncePool& pool() { return *pool_; }

  // From now on it copies the bytes that are due. The transfer may have ended already.
  void submit(const std::shared_ptr<Transfer>& transfer);
  void allow(const std::shared_ptr<Transfer>& transfer, uint32_t input, uint64_t bytes);
  void mark(const std::shared_ptr<Transfer>& transfer, uint32_t output, uint64_t bytes);
  // The operation has ended for its group. finish() follows once all final bytes have been copied
  // and no call touches its memory; soon if the operation has failed.
  void end(const std::shared_ptr<Transfer>& transfer, const Status& status);

  // Calls `act` when finish() has been called for all transfers of the group that have ended by
  // now: immediately, or on the thread of the last of them.
  void after(uint32_t group, std::function<void()> act);
  // Waits until no transfer of the group is left.
  void settle(uint32_t group, Nanos deadline);
  // A call that takes longer than half of the operation's timeout (half a second at least) hangs:
  // operations in flight fail, in all groups of the client. To be called often, by the tenant's
  // thread.
  void check(Nanos now);
  // The last call. A hanging thread is abandoned: it only touches data that it owns.
  void retire();

  struct Report {
    std::optional<ipc::AccessMethod> method;
    uint64_t pulled = 0, pushed = 0;  // bytes
    bool hangs = false;
  };
  Report report() const;

 private:
  struct Call {
    std::shared_ptr<Transfer> transfer;  // null while the offer is being checked
    Transfer::Way way = Transfer::kPull;
    std::vector<CopyList::Copied> batch;
    Nanos since = 0, limit = 0;
  };
  // Callbacks to run without a lock.
  using Later = std::vector<std::function<void()>>;

  Mover(ClientMemory::Client client, std::shared_ptr<BouncePool> pool)
      : client_(client), pool_(std::move(pool)) {}
  void run(const ipc::MemoryOffer& offer, Fd file, const Opened& opened);
  std::unique_ptr<ClientMemory> open(const ipc::MemoryOffer& offer, Fd file, const Opened& opened);
  // Call all of these with mutex_ held.
  void begin(Call call);
  void end_call();
  void enqueue(const std::shared_ptr<Transfer>& transfer);
  bool take(Call& call, std::vector<ClientMemory::Span>& spans);
  void moved(const Call& call, ClientMemory::Moved how, Later& later);
  void break_off(Transfer& transfer, const Status& why, Later& later);
  void finish_if_over(const std::shared_ptr<Transfer>& transfer, Later& later);
  void told(const std::shared_ptr<Transfer>& transfer);  // call without a lock
  bool in_call(const Transfer& transfer) const;

  const ClientMemory::Client client_;
  const std::shared_ptr<BouncePool> pool_;
  std::thread thread_;

  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable work_, news_;
  std::set<std::shared_ptr<Transfer>> live_;     // submitted, but not finished
  std::set<std::shared_ptr<Transfer>> telling_;  // whose finish() has not returned
  struct Waiting {
    std::set<std::shared_ptr<Transfer>> on;
    std::function<void()> act;
  };
  std::deque<Waiting> waiting_;
  std::deque<std::shared_ptr<Transfer>> due_[2];  // by direction
  Transfer::Way last_ = Transfer::kPush;
  std::optional<Call> call_;  // the call being executed
  bool hangs_ = false;        // that call hangs
  bool stopping_ = false, over_ = false;
  std::optional<ipc::AccessMethod> method_;  // set once it is open
  uint64_t moved_[2] = {0, 0};               // bytes, by direction
};

}  // namespace mcast::service
