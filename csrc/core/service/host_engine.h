// The engine of a host: listens for clients, and has a tenant for each.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "service/status_socket.h"
#include "service/tenant.h"

namespace mcast::service {

struct HostEngineOptions {
  std::string path = kDefaultEnginePath;  // of the socket
  mode_t mode = 0660;                     // of its file
  uint32_t clients = 64;                  // at once, of one user
  TenantLimits limits;                    // of each client
};

// Thread-safe.
class HostEngine {
 public:
  static Result<std::unique_ptr<HostEngine>> start(HostEngineOptions options);
  // Ends all clients and waits for their threads.
  ~HostEngine();

  const std::string& path() const { return options_.path; }
  std::vector<TenantReport> report() const;
  // One JSON document, as `torch-mcast engine status` gets it.
  std::string status_text() const;

 private:
  struct Place {
    std::atomic<bool> over{false};
    uid_t uid = 0;
    std::unique_ptr<Tenant> tenant;
  };

  // One that was told why not. It is kept until it has read that: a socket that is closed with
  // something unread takes along what it has sent.
  struct Refused {
    LocalSocket socket;
    Nanos until = 0;
  };

  explicit HostEngine(HostEngineOptions options) : options_(std::move(options)) {}
  void run();
  void admit(Fd fd);
  void refuse(LocalSocket socket, const Status& why);
  void sweep();

  const HostEngineOptions options_;
  StatusSocket status_;  // the thread's
  Fd listener_;
  std::atomic<bool> ending_{false};
  mutable std::mutex mutex_;  // of the list
  std::list<Place> places_;
  std::vector<Refused> refused_;  // the thread's
  std::thread thread_;
};

}  // namespace mcast::service
