// One client of a host engine: its link, its groups, its lanes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "host_engine/server/closer.h"
#include "host_engine/server/pending_posts.h"
#include "host_engine/server/relay_store.h"
#include "host_engine/server/tenant_group.h"
#include "host_engine/server/tenant_link.h"
#include "runtime/group_maker.h"
#include "shm/arena_pool.h"

namespace mcast::service {

struct TenantLimits {
  uint32_t groups = 256;
  uint32_t operations = 4096;  // in flight
  // Bytes of shared memory: address space, whose pages exist only once they are touched. A client's
  // tensors and spans may each be as large as the machine's memory.
  uint64_t arenas = 2 * ArenaPool::memory_of_machine();
  // Bytes of copied tensors, for all clients of a user together.
  uint64_t bounce = uint64_t{4} << 30;
  Nanos silence = 10 * kSecond;                 // without a beat: a client gives up
  std::map<std::string, std::string> settings;  // settings that override a client's
};

// The error for clients that connect to an engine that drains: kUnavailable.
Status being_replaced();

// Status of a client (engine status).
struct TenantReport {
  pid_t pid = 0;
  uid_t uid = 0;
  std::vector<std::string> groups;
  std::set<std::string> security;  // modes of its groups
  uint64_t arena_bytes = 0;
  uint32_t in_flight = 0;
  uint64_t sent_bytes = 0;    // sent to the network
  uint64_t share_waits = 0;   // sends that waited for other jobs
  uint64_t bounce_bytes = 0;  // for copies of its tensors, including kept blocks
  Mover::Report mover{};
};

// Thread-safe. A thread of its own serves the client until it leaves, breaks the protocol or is
// ended.
class Tenant {
 public:
  // Number of threads of a client with groups of one kind of lanes: its own, the one that closes
  // groups, two lanes, two for ranks of this host.
  static constexpr uint32_t kThreads = 6;

  // `context`: the engine's; `threads`: holds the place of kThreads threads in its quota. `over` is
  // called at the end, on the tenant's thread. Returns an error if there is no memory for the link,
  // or no thread; the socket is unchanged then.
  static Result<std::unique_ptr<Tenant>> serve(LocalSocket&& socket, const TenantLimits& limits,
                                               const EngineContext& context,
                                               std::shared_ptr<void> threads,
                                               std::function<void()> over);
  // Waits for the thread.
  ~Tenant();

  // From now on it makes no new groups; the client is notified, and leaves when it has no groups.
  // `limit`: total time that clients have.
  void drain(Nanos limit) { drain_limit_ = limit; }
  // Like drain(), and the client's groups end on all ranks, with its name. Happens soon, on the
  // tenant's thread.
  void end(Nanos limit) {
    drain(limit);
    ending_ = true;
  }
  TenantReport report() const;

 private:
  // Creation of a group; it blocks, so it has a thread of its own.
  struct Creation {
    std::unique_ptr<RelayStore> store;
    std::atomic<bool> interrupted{false};
    bool ended = false;  // under mutex_: it has failed, or its group is in groups_
    std::atomic<bool> over{false};
    std::shared_ptr<void> place;  // place in the user's quota of threads
    std::thread thread;
  };

  Tenant(std::shared_ptr<TenantLink> link, const TenantLimits& limits, const EngineContext& context,
         std::shared_ptr<void> threads, std::function<void()> over);
  Status start();
  void run();
  // Returns "" if the client has sent Bye.
  std::string serve_until_its_end();
  void wind_up(const std::string& why);
  void sweep(bool also_about_to_be_over);
  // Each returns "" or why the client is ended.
  std::string heed_drain();
  std::string serve_ring();
  std::string catch_up(size_t& records);
  std::string take_record(bool& some);
  std::string serve_socket();
  std::string on_record(ipc::Submission record);
  std::string on_post(const ipc::PostRecord& post);
  std::string on_message(const ipc::Control& message, std::vector<Fd> files);
  std::string greet(const ipc::Control& message);
  std::string on_group_ask(const ipc::Control& message);
  Status may_make(const ipc::GroupAsk& asked, const Config& config) const;
  Status begin(uint64_t call, const ipc::GroupAsk& asked, Config config);
  void create(uint64_t call, const GroupSpec& spec, Creation& creation);
  void on_arena_offer(uint64_t call, const ipc::Arena& offered, Fd file);
  std::string on_memory_offer(const ipc::Control& message, std::vector<Fd> files);
  void on_close(uint64_t call, const ipc::Close& close);
  void on_stats_ask(const ipc::Control& message);
  void sleep();
  TenantGroup* find(uint32_t handle) const;

  const std::shared_ptr<TenantLink> link_;
  const TenantLimits limits_;
  const std::function<void()> over_;
  const std::shared_ptr<void> threads_;  // holds their place in the user's quota
  GroupMaker maker_;
  bool greeted_ = false, bye_ = false;
  std::atomic<Nanos> drain_limit_{kNever};  // kNever if it does not drain
  std::atomic<bool> ending_{false};
  Nanos told_limit_ = kNever;
  const std::shared_ptr<std::atomic<uint32_t>> in_flight_ =
      std::make_shared<std::atomic<uint32_t>>(0);
  std::map<uint64_t, Creation> creations_;
  PendingPosts pending_;
  Closer closer_;

  mutable std::mutex mutex_;  // guards the fields below: creations add, reports read
  std::map<uint32_t, std::shared_ptr<TenantGroup>> groups_;
  uint32_t next_handle_ = 1;
  struct {
    Arenas arenas;  // used by the tenant's thread only
    uint64_t arena_bytes = 0;
    std::shared_ptr<void> thread;  // holds the mover's place in the user's quota
    std::shared_ptr<Mover> mover;  // set once the client has offered its own memory
  } memory_;

  std::thread thread_;
};

}  // namespace mcast::service
