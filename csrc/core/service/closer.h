// The ends of one client's groups: what they wait for is for a thread of its own, one for all.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "service/mover.h"
#include "service/tenant_group.h"
#include "service/tenant_link.h"

namespace mcast::service {

// The calls are the tenant's thread's; open() and size() any thread's.
class Closer {
 public:
  explicit Closer(std::shared_ptr<TenantLink> link) : link_(std::move(link)) {}
  // Waits for the thread; what is not closed by then is let go of.
  ~Closer();
  // Once, before anything else. Not ok: no thread can be had.
  Status start();

  // Closes the group, to which nobody posts any more: when it is over, and what it has completed
  // has been copied (`mover` may be null), the client is told, as an answer to `call` (0: it is
  // not).
  void close(std::shared_ptr<TenantGroup> group, uint64_t call, const ipc::Close& how,
             std::shared_ptr<Mover> mover);
  // One that is being closed: its operations in flight go on. Null: there is none.
  std::shared_ptr<TenantGroup> find(uint32_t handle) const;
  // Groups that are not closed yet; with those of which something is left.
  size_t open() const;
  size_t size() const;

  // The client is lost: what is not closed yet fails on all ranks, by name, and is closed soon.
  void lose(const std::string& why);
  // Whether all are closed and gone, for which it waits so long.
  bool wait(Nanos patience);

 private:
  struct One {
    std::shared_ptr<TenantGroup> group;
    std::shared_ptr<Mover> mover;
    uint64_t call = 0;
    Nanos end = 0;      // of the client's patience
    bool over = false;  // with this outcome
    bool told = false;  // or about to be: it counts no more
    Status outcome;
  };
  // Shared with callbacks on lanes.
  struct State {
    mutable std::mutex mutex;
    std::condition_variable news;
    std::map<uint32_t, One> closing;  // by handle
    bool stopping = false;
  };
  void run();
  One* next();  // the state's mutex held
  void finish(const One& one);

  const std::shared_ptr<TenantLink> link_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace mcast::service
