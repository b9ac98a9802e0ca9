// Closes one client's groups. Their waits are done by one separate thread for all of them.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host_engine/server/mover.h"
#include "host_engine/server/tenant_group.h"
#include "host_engine/server/tenant_link.h"

namespace mcast::service {

// The tenant's thread makes the calls; open() and size() are for any thread.
class Closer {
 public:
  explicit Closer(std::shared_ptr<TenantLink> link) : link_(std::move(link)) {}
  // Waits for the thread; groups that are not closed by then are abandoned.
  ~Closer();
  // Call once, before any other function. Returns an error if no thread can be started.
  Status start();

  // Closes the group, to which no call posts any more: when it is over, and its completed outputs
  // have been copied (`mover` may be null), the client is notified, as the reply to `call` (0: no
  // notification).
  void close(std::shared_ptr<TenantGroup> group, uint64_t call, const ipc::Close& how,
             std::shared_ptr<Mover> mover);
  // Returns a group that is being closed: its operations in flight continue. Null if there is none.
  std::shared_ptr<TenantGroup> find(uint32_t handle) const;
  // Number of groups that are not closed yet; size() includes those that are not destroyed yet.
  size_t open() const;
  size_t size() const;

  // The client is lost: groups that are not closed yet fail on all ranks, with the client's name,
  // and are closed soon.
  void lose(const std::string& why);
  // Returns true if all groups are closed and destroyed, for which it waits at most `patience`.
  bool wait(Nanos patience);

 private:
  struct One {
    std::shared_ptr<TenantGroup> group;
    std::shared_ptr<Mover> mover;
    uint64_t call = 0;
    Nanos end = 0;      // end of the client's time limit
    bool over = false;  // the outcome, once it is over
    bool told = false;  // notified, or about to be: it does not count any more
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
  One* next();  // call with the state's mutex held
  void finish(const One& one);

  const std::shared_ptr<TenantLink> link_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace mcast::service
