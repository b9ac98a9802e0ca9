// The socket at which an engine is asked to drain, beside the one of its clients and for its owner
// only: the file's mode is 0600, and who asks from another pid namespace (root in a container that
// has the folder mounted) is refused. Not thread-safe: one thread calls everything.
#pragma once

#include <poll.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "host/local_socket.h"
#include "ipc/control.h"

namespace mcast::service {

class DrainSocket {
 public:
  // Of an engine whose clients connect to `engine`. Errors and `replace` as of LocalListener.
  Status open(const std::string& engine, bool replace);

  // As of Door. `drain` is told the limit that is asked for and tells the one that holds.
  void watch(std::vector<pollfd>& list);
  void serve(std::span<const pollfd> ready, Nanos now, const std::function<Nanos(Nanos)>& drain);

 private:
  struct Asker {
    LocalSocket socket;
    Nanos until = 0;
  };
  // False: it is done with.
  static bool answer(Asker& asker, const std::function<Nanos(Nanos)>& drain);

  LocalListener listener_;
  std::vector<Asker> askers_;
};

// Asks the engine whose clients connect to `engine`; tells how long they have.
Result<ipc::Draining> ask_to_drain(const std::string& engine, Nanos limit,
                                   const TrustedUser& trusted = {});

}  // namespace mcast::service
