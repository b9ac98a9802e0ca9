// The unix socket at which `torch-mcast aggregator status` asks: whoever connects is sent one text
// and the end. Not thread-safe: one thread calls everything.
#pragma once

#include <poll.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/half_open_rules.h"
#include "base/status.h"
#include "base/types.h"
#include "host/local_socket.h"

namespace mcast::service {

// Where it is unless somebody says otherwise: the first of these whose folder is there or can be
// made: /run/torch-mcast-aggregator, $XDG_RUNTIME_DIR/torch-mcast-aggregator. Empty: none. Not the
// folder of the engine: whoever may write to that may pose as the engine.
std::string default_status_path();

class StatusSocket {
 public:
  // Readers at once, and new ones of a turn, at most. Where a further one comes, one goes: a user
  // other than root and the process's own has a few places (base/half_open_rules.h).
  static constexpr size_t kMostReaders = 16;
  static constexpr HalfOpenRules kRules{kMostReaders, 4, kMostReaders / 2};
  // Time to read the text.
  static constexpr Nanos kPatience = 5 * kSecond;

  StatusSocket() = default;
  StatusSocket(const StatusSocket&) = delete;
  StatusSocket& operator=(const StatusSocket&) = delete;

  // Takes the place of a socket that nobody listens at, with `replace` of any. kUnavailable:
  // another process does. `who` listens, for the error.
  Status open(const std::string& path, const char* who = "aggregator", bool replace = false);
  // Also removes the file, if nobody has taken its place.
  void close();
  // Empty: not open.
  const std::string& path() const { return listener_.path(); }

  // As of Door. `text` is asked at most once.
  void watch(std::vector<pollfd>& list);
  void serve(std::span<const pollfd> ready, Nanos now, const std::function<std::string()>& text);
  Nanos deadline() const;

 private:
  struct Reader {
    Fd fd;
    std::string text;
    size_t sent = 0;
    Nanos until = 0;
    HalfOpenSeat seat{};
  };
  // False: it is done with.
  static bool write(Reader& reader);
  void add(Reader reader);

  LocalListener listener_;
  std::vector<Reader> readers_;
  bool listening_ = false;  // in the last watch()
};

}  // namespace mcast::service
