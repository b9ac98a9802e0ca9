// The socket that requests an engine to drain, next to the clients' socket and for its owner only:
// the file's mode is 0600, and a request from another pid namespace (root in a container that has
// the folder mounted) is refused. Not thread-safe: one thread calls everything.
#pragma once

#include <poll.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/local_socket.h"
#include "host_engine/ipc/control.h"

namespace mcast::service {

class DrainSocket {
 public:
  // Opens the socket of an engine whose clients connect to `engine`. Errors and `replace` as in
  // LocalListener.
  Status open(const std::string& engine, bool replace);

  // As in AdmissionListener. `drain` receives the requested limit and returns the one that applies.
  void watch(std::vector<pollfd>& list);
  void serve(std::span<const pollfd> ready, Nanos now, const std::function<Nanos(Nanos)>& drain);

 private:
  struct Asker {
    LocalSocket socket;
    Nanos until = 0;
  };
  // Returns false if the connection is finished.
  static bool answer(Asker& asker, const std::function<Nanos(Nanos)>& drain);

  LocalListener listener_;
  std::vector<Asker> askers_;
};

// Asks the engine whose clients connect to `engine`; tells how long they have.
Result<ipc::Draining> ask_to_drain(const std::string& engine, Nanos limit,
                                   const TrustedUser& trusted = {});

}  // namespace mcast::service
