// The engine of a host: listens for clients, and has a tenant for each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "service/drain_socket.h"
#include "service/engine_security.h"
#include "service/reach.h"
#include "service/status_socket.h"
#include "service/store_relay.h"
#include "service/store_server.h"
#include "service/tenant.h"

namespace mcast::service {

struct HostEngineOptions {
  std::string path = kDefaultEnginePath;  // of the socket
  mode_t mode = 0660;                     // of its file
  gid_t group = static_cast<gid_t>(-1);   // of its file; -1: the process's
  std::vector<uid_t> users;               // who may connect; empty: whom the file lets
  bool replace = false;                   // an engine that answers at the path
  uint32_t clients = 64;                  // at once, of one user
  uint32_t threads = 768;                 // of all clients of one user
  std::map<uid_t, uint32_t> weights;      // of users' jobs in the division of the link; else 1
  std::vector<Ipv4Network> peers;         // where members of groups may be; see Reach
  uint16_t store_port = 0;                // of jobs' stores, at all engines; 0: none are kept
  std::vector<Ipv4Network> store_allow;   // where they may be asked from; empty: as `peers`
  EngineSecurityOptions security;         // of clients' groups
  TenantLimits limits;                    // of each client
  Nanos goodbye = 10 * kSecond;           // of clients, after SIGTERM
  bool guardian = true;                   // of the program: a second process watches this one
  // Counted up as long as the engine's thread runs; null: nobody looks.
  std::atomic<uint64_t>* beats = nullptr;
};

// Thread-safe.
//
// At its end it drains: it refuses new clients and groups, those that there are go on, and when the
// last client has gone, or the limit is over, it is over. An engine whose socket's file another one
// has replaced drains by itself.
class HostEngine {
 public:
  // What clients have to go where nobody says otherwise.
  static constexpr Nanos kDrain = 600 * kSecond;

  // kUnavailable: another engine, which does not drain, answers at the path. kInvalidArgument,
  // kUnavailable: there is no secret where the options need one, or it cannot be used.
  static Result<std::unique_ptr<HostEngine>> start(HostEngineOptions options);
  // As drain(0), and waits.
  ~HostEngine();

  // Of several limits the one that ends first holds; tells how long it is, from when it began.
  Nanos drain(Nanos limit);
  // It has drained: nobody is served any more.
  bool over() const { return over_; }

  const std::string& path() const { return options_.path; }
  const EngineSecurity& security() const { return *security_; }
  std::vector<TenantReport> report() const;
  // One JSON document, as `torch-mcast engine status` gets it.
  std::string status_text() const;

 private:
  struct Place {
    std::atomic<bool> over{false};
    uid_t uid = 0;
    std::unique_ptr<Tenant> tenant;
  };
  // Destroys tenants that are over: what that costs grows with what they had mapped, and the thread
  // that beats waits for nothing of that kind.
  class Reaper {
   public:
    Reaper() = default;
    ~Reaper();
    Status start();
    void take(std::list<Place> over);
    size_t waiting() const { return waiting_; }

   private:
    void run();

    std::mutex mutex_;  // of what follows
    std::condition_variable news_;
    std::list<Place> over_;
    bool stopping_ = false;
    std::atomic<size_t> waiting_{0};  // that are not destroyed yet
    std::thread thread_;
  };

  // One that was told why not. It is kept until it has read that: a socket that is closed with
  // something unread takes along what it has sent.
  struct Refused {
    LocalSocket socket;
    Nanos until = 0;
  };

  HostEngine(HostEngineOptions options, std::shared_ptr<const EngineSecurity> security)
      : options_(std::move(options)),
        security_(std::move(security)),
        reach_(std::make_shared<Reach>(options_.peers)) {}
  Status open();
  Status listen();
  void run();
  void turn();
  void wait_and_serve();
  void look_after_file();
  Status open_stores();
  void serve_stores(Nanos now);
  size_t stores_in_use() const;
  void advance(Nanos now);
  void admit(Fd fd);
  Status may_use(uid_t uid) const;
  // Ok: this user may come now.
  Status may_come(uid_t uid) const;  // mutex_ held
  void tell_drain(Json& json) const;
  void refuse(LocalSocket& socket, const Status& why);
  std::shared_ptr<Quota> threads_of(uid_t uid);  // mutex_ held
  EngineContext context_for(uid_t uid);          // mutex_ held
  MayReach may_reach() const;
  void sweep();

  const HostEngineOptions options_;
  const std::shared_ptr<const EngineSecurity> security_;
  const std::shared_ptr<Reach> reach_;
  StatusSocket status_;  // the thread's, as the next ones
  DrainSocket drain_;
  LocalListener listener_;
  std::vector<Refused> refused_;
  bool replaced_ = false;  // another engine has the place of its socket
  struct {
    std::unique_ptr<StoreServer> server;  // null: none, or another engine has the port yet
    std::unique_ptr<StoreRelay> relay;
  } stores_;
  struct {
    RateLimit drain{60 * kSecond}, stores{60 * kSecond}, trouble{10 * kSecond}, lost{10 * kSecond};
  } news_;
  std::atomic<bool> over_{false};
  const std::shared_ptr<HostDirectory> directory_ = std::make_shared<HostDirectory>();
  const std::shared_ptr<EgressShares> shares_ = std::make_shared<EgressShares>();
  mutable std::mutex mutex_;  // of what follows
  std::map<uid_t, std::weak_ptr<Quota>> threads_;
  std::list<Place> places_;
  Reaper reaper_;                          // locks for itself
  Nanos limit_ = kNever, until_ = kNever;  // of the drain
  std::thread thread_;
};

}  // namespace mcast::service
