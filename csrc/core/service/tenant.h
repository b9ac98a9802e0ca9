// One client of an engine of the host: its link, its groups, its lanes.
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

#include "engine/group_maker.h"
#include "host/arena_pool.h"
#include "service/closer.h"
#include "service/pending_posts.h"
#include "service/relay_store.h"
#include "service/tenant_group.h"
#include "service/tenant_link.h"

namespace mcast::service {

struct TenantLimits {
  uint32_t groups = 256;
  uint32_t operations = 4096;  // in flight
  // Bytes of memory that is shared: address space, of which pages exist when they are touched. A
  // client's tensors and spans each may be as much as the machine has.
  uint64_t arenas = 2 * ArenaPool::memory_of_machine();
  // Bytes of tensors that are copied, of all clients of a user together.
  uint64_t bounce = uint64_t{4} << 30;
  Nanos silence = 10 * kSecond;                 // without a beat of the engine: a client gives up
  std::map<std::string, std::string> settings;  // that override a client's
};

// What who comes to an engine that drains is told: kUnavailable.
Status being_replaced();

// What is told of it (engine status).
struct TenantReport {
  pid_t pid = 0;
  uid_t uid = 0;
  std::vector<std::string> groups;
  std::set<std::string> security;  // modes of these
  uint64_t arena_bytes = 0;
  uint32_t in_flight = 0;
  uint64_t sent_bytes = 0;    // to the network
  uint64_t share_waits = 0;   // sends that waited for other jobs
  uint64_t bounce_bytes = 0;  // for copies of its tensors, in use and kept
  Mover::Report mover{};
};

// Thread-safe. A thread of its own serves the client until it goes, breaks the protocol or is
// ended.
class Tenant {
 public:
  // The threads of a client with groups of one kind of lanes: its own, the one that closes groups,
  // two lanes, two for ranks of this host.
  static constexpr uint32_t kThreads = 6;

  // `context`: all of it; `threads`: the place of so many in its quota. `over` is called at the
  // end, on the tenant's thread. Not ok: no memory for the link, or no thread; the socket is as it
  // was.
  static Result<std::unique_ptr<Tenant>> serve(LocalSocket&& socket, const TenantLimits& limits,
                                               const EngineContext& context,
                                               std::shared_ptr<void> threads,
                                               std::function<void()> over);
  // Waits for the thread.
  ~Tenant();

  // From now on it makes no new groups; the client is told, and goes when it has none. `limit`: how
  // long clients have in all.
  void drain(Nanos limit) { drain_limit_ = limit; }
  // As drain(), and the client's groups end on all ranks, by name. Soon, on the tenant's thread.
  void end(Nanos limit) {
    drain(limit);
    ending_ = true;
  }
  TenantReport report() const;

 private:
  // It blocks, so it has a thread of its own.
  struct Creation {
    std::unique_ptr<RelayStore> store;
    std::atomic<bool> interrupted{false};
    bool ended = false;  // under mutex_: it has failed, or its group is among groups_
    std::atomic<bool> over{false};
    std::shared_ptr<void> place;  // in the user's quota of threads
    std::thread thread;
  };

  Tenant(std::shared_ptr<TenantLink> link, const TenantLimits& limits, const EngineContext& context,
         std::shared_ptr<void> threads, std::function<void()> over);
  Status start();
  void run();
  // "": it has said Bye.
  std::string serve_until_its_end();
  void wind_up(const std::string& why);
  void sweep(bool also_about_to_be_over);
  // Each: "" or why the client is ended.
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
  const std::shared_ptr<void> threads_;  // their place in the user's quota
  GroupMaker maker_;
  bool greeted_ = false, bye_ = false;
  std::atomic<Nanos> drain_limit_{kNever};  // kNever: it does not drain
  std::atomic<bool> ending_{false};
  Nanos told_limit_ = kNever;
  const std::shared_ptr<std::atomic<uint32_t>> in_flight_ =
      std::make_shared<std::atomic<uint32_t>>(0);
  std::map<uint64_t, Creation> creations_;
  PendingPosts pending_;
  Closer closer_;

  mutable std::mutex mutex_;  // of what follows: creations add, reports read
  std::map<uint32_t, std::shared_ptr<TenantGroup>> groups_;
  uint32_t next_handle_ = 1;
  struct {
    Arenas arenas;  // the tenant's thread only
    uint64_t arena_bytes = 0;
    std::shared_ptr<void> thread;  // the mover's place in the user's quota
    std::shared_ptr<Mover> mover;  // once the client has offered its own
  } memory_;

  std::thread thread_;
};

}  // namespace mcast::service
