// Connects a rank, which has no network, with its job's store at some engine: bytes are relayed
// between a local connection and one to that engine. One thread per connection.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/local_socket.h"
#include "base/status.h"
#include "runtime/context.h"

namespace mcast::service {

// The path of its socket, next to the engine's.
std::string store_path(const std::string& engine_path);

// One caller makes the calls.
class StoreRelay {
 public:
  // Returns an object that holds the user's place, or why this user may not have one more.
  using Admit = std::function<Result<std::shared_ptr<void>>(uid_t)>;

  // Listens from listen() on. `port`: that of the stores of all engines; it connects to no other
  // port, and to no host out of reach.
  static Result<std::unique_ptr<StoreRelay>> open(const std::string& engine_path,
                                                  LocalListener::How how, uint16_t port,
                                                  Admit admit, MayReach may_reach);
  ~StoreRelay();
  // Creates the socket's file again, replacing an existing one.
  Status listen();
  // Accepts new connections, and releases ended ones.
  void serve();
  int fd() const { return listener_.fd(); }
  size_t connections() const { return carried_.size(); }

 private:
  struct Carried {
    std::atomic<bool> over{false};
    std::shared_ptr<void> hold;
    std::thread thread;
  };
  StoreRelay(const std::string& engine_path, LocalListener::How how, uint16_t port, Admit admit,
             MayReach may_reach)
      : path_(store_path(engine_path)),
        how_(how),
        port_(port),
        admit_(std::move(admit)),
        may_reach_(std::move(may_reach)) {}
  // Connects to the first address of the host that answers; `out_of_reach` is set if one of them is
  // not for clients.
  Result<Fd> connect_to_host(const std::string& host, Status& out_of_reach) const;
  void carry(int rank) const;

  const std::string path_;
  const LocalListener::How how_;
  LocalListener listener_;
  const uint16_t port_;
  const Admit admit_;
  const MayReach may_reach_;
  std::atomic<bool> stopping_{false};
  std::list<Carried> carried_;
};

}  // namespace mcast::service
