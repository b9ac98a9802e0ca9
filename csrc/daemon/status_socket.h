// The unix socket read by `torch-mcast aggregator status`: a process that connects is sent one
// text, then the connection is closed. Not thread-safe: one thread calls everything.
#pragma once

#include <poll.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/half_open_rules.h"
#include "base/local_socket.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast::service {

// Default path: the first of these whose folder exists or can be made: /run/torch-mcast-aggregator,
// $XDG_RUNTIME_DIR/torch-mcast-aggregator. Empty if there is none. Not the folder of the engine,
// because a process that may write there could impersonate the engine.
std::string default_status_path();

class StatusSocket {
 public:
  // Maximum number of readers, and of new ones per poll. When a further one connects, one is
  // dropped: a user other than root and the process's own has a few places
  // (base/half_open_rules.h).
  static constexpr size_t kMostReaders = 16;
  static constexpr HalfOpenRules kRules{kMostReaders, 4, kMostReaders / 2};
  // Time to read the text.
  static constexpr Nanos kPatience = 5 * kSecond;

  StatusSocket() = default;
  StatusSocket(const StatusSocket&) = delete;
  StatusSocket& operator=(const StatusSocket&) = delete;

  // Replaces a socket at which no process listens, or with `replace` any socket. kUnavailable if
  // another process listens. `who` listens, for the error.
  Status open(const std::string& path, const char* who = "aggregator", bool replace = false);
  // Also removes the file, unless another process has replaced it.
  void close();
  // Empty if it is not open.
  const std::string& path() const { return listener_.path(); }

  // As in AdmissionListener. `text` is called at most once.
  void watch(std::vector<pollfd>& list);
  void serve(std::span<const pollfd> ready, Nanos now, const std::function<std::string()>& text);
  Nanos deadline() const;

 private:
  struct Reader {
    Fd fd;
    std::string text;
    size_t sent = 0;
    Nanos until = 0;
    HalfOpenSeat<uid_t> seat{};
  };
  // Returns false if the reader is finished.
  static bool write(Reader& reader);
  void add(Reader reader);

  LocalListener listener_;
  std::vector<Reader> readers_;
  bool listening_ = false;  // in the last watch()
};

}  // namespace mcast::service
