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
#include "daemon/status_socket.h"
#include "host_engine/server/drain_socket.h"
#include "host_engine/server/engine_security.h"
#include "host_engine/server/reach_policy.h"
#include "host_engine/server/store_relay.h"
#include "host_engine/server/store_server.h"
#include "host_engine/server/tenant.h"

namespace mcast::service {

struct HostEngineOptions {
  std::string path = kDefaultEnginePath;  // of the socket
  mode_t mode = 0660;                     // of the socket's file
  gid_t group = static_cast<gid_t>(-1);   // of the socket's file; -1: the process's
  std::vector<uid_t> users;               // may connect; empty: as the file's mode permits
  bool replace = false;                   // replace an engine that replies at the path
  uint32_t clients = 64;                  // maximum at the same time, per user
  uint32_t threads = 768;                 // for all clients of one user
  std::map<uid_t, uint32_t> weights;      // of users' jobs in sharing the link; default 1
  std::vector<IpNetwork> peers;  // networks in which members of groups may be; see ReachPolicy
  uint16_t store_port = 0;       // of jobs' stores, on all engines; 0: no stores are kept
  std::vector<IpNetwork> store_allow;  // networks of their clients; empty: as `peers`
  EngineSecurityOptions security;      // of clients' groups
  TenantLimits limits;                 // of each client
  Nanos goodbye = 10 * kSecond;        // time that clients have to leave, after SIGTERM
  bool guardian = true;                // of the program: a second process supervises this one
  // Incremented as long as the engine's thread runs; null: not supervised.
  std::atomic<uint64_t>* beats = nullptr;
};

// Thread-safe.
//
// At its end it drains: it refuses new clients and groups, existing ones continue, and it ends when
// the last client has left or the limit has passed. An engine whose socket file another one has
// replaced drains by itself.
class HostEngine {
 public:
  // Default time that clients have to leave.
  static constexpr Nanos kDrain = 600 * kSecond;

  // kUnavailable if another engine, which does not drain, replies at the path. kInvalidArgument or
  // kUnavailable if the options need a secret that is missing or unusable.
  static Result<std::unique_ptr<HostEngine>> start(HostEngineOptions options);
  // Like drain(0), and waits.
  ~HostEngine();

  // The limit that ends first counts, if there are several; returns it, measured from the start of
  // the drain.
  Nanos drain(Nanos limit);
  // Returns true once it has drained: no client is served any more.
  bool over() const { return over_; }

  const std::string& path() const { return options_.path; }
  const EngineSecurity& security() const { return *security_; }
  std::vector<TenantReport> report() const;
  // One JSON document, as printed by `torch-mcast engine status`.
  std::string status_text() const;

 private:
  struct Place {
    std::atomic<bool> over{false};
    uid_t uid = 0;
    std::unique_ptr<Tenant> tenant;
  };
  // Destroys tenants that are over: the time this takes grows with the memory they had mapped, and
  // the thread that beats must not wait for that.
  class Reaper {
   public:
    Reaper() = default;
    ~Reaper();
    Status start();
    void take(std::list<Place> over);
    size_t waiting() const { return waiting_; }

   private:
    void run();

    std::mutex mutex_;  // guards the fields below
    std::condition_variable news_;
    std::list<Place> over_;
    bool stopping_ = false;
    std::atomic<size_t> waiting_{0};  // number of tenants not destroyed yet
    std::thread thread_;
  };

  // A refused connection that was sent the reason. It is kept until the client has read that:
  // closing a socket with unread input would discard the bytes sent.
  struct Refused {
    LocalSocket socket;
    Nanos until = 0;
  };

  HostEngine(HostEngineOptions options, std::shared_ptr<const EngineSecurity> security)
      : options_(std::move(options)),
        security_(std::move(security)),
        reach_(std::make_shared<ReachPolicy>(options_.peers)) {}
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
  // Ok if this user may connect now.
  Status may_come(uid_t uid) const;  // mutex_ held
  void tell_drain(Json& json) const;
  void refuse(LocalSocket& socket, const Status& why);
  std::shared_ptr<Quota> threads_of(uid_t uid);  // mutex_ held
  EngineContext context_for(uid_t uid);          // mutex_ held
  MayReach may_reach() const;
  void sweep();

  const HostEngineOptions options_;
  const std::shared_ptr<const EngineSecurity> security_;
  const std::shared_ptr<ReachPolicy> reach_;
  StatusSocket status_;  // used by the thread only, as are the next ones
  DrainSocket drain_;
  LocalListener listener_;
  std::vector<Refused> refused_;
  bool replaced_ = false;  // another engine has taken the place of its socket
  struct {
    std::unique_ptr<StoreServer> server;  // null: none, or another engine has the port
    std::unique_ptr<StoreRelay> relay;
  } stores_;
  struct {
    RateLimit drain{60 * kSecond}, stores{60 * kSecond}, trouble{10 * kSecond}, lost{10 * kSecond};
  } news_;
  std::atomic<bool> over_{false};
  const std::shared_ptr<HostDirectory> directory_ = std::make_shared<HostDirectory>();
  const std::shared_ptr<EgressShares> shares_ = std::make_shared<EgressShares>();
  mutable std::mutex mutex_;  // guards the fields below
  std::map<uid_t, std::weak_ptr<Quota>> threads_;
  std::list<Place> places_;
  Reaper reaper_;                          // has its own lock
  Nanos limit_ = kNever, until_ = kNever;  // of the drain
  std::thread thread_;
};

}  // namespace mcast::service
