// Connections that a Stream has refused: their number by cause, and those that have yet to be
// reported to its sink.
#pragma once

#include <utility>
#include <vector>

#include "transport/transport.h"

namespace mcast {

// Cumulative; written and read by the lane's thread.
struct RefusalStats {
  uint64_t hello_refused = 0;   // wrong magic, version, uid or proof; half a Hello
  uint64_t hello_timeouts = 0;  // no valid message in time
  uint64_t not_allowed = 0;     // from an address outside `allow`
  uint64_t crowded_out = 0;     // half-open connections, or peers not added, that found no place
};

class RefusedConnections {
 public:
  explicit RefusedConnections(RefusalStats& stats) : stats_(stats) {}  // outlives this

  void note(Cause cause, Source source) {
    switch (cause) {
      case Cause::not_allowed:
        ++stats_.not_allowed;
        break;
      case Cause::hello_timeouts:
        ++stats_.hello_timeouts;
        break;
      case Cause::crowded_out:
        ++stats_.crowded_out;
        break;
      case Cause::forged:
      case Cause::malformed:
        break;  // on an accepted connection this is a violation
      default:
        ++stats_.hello_refused;
        break;
    }
    waiting_.emplace_back(cause, source);
  }
  void tell(StreamSink& sink) {
    for (const auto& [cause, source] : waiting_) sink.on_refused(cause, source);
    waiting_.clear();
  }

 private:
  RefusalStats& stats_;
  std::vector<std::pair<Cause, Source>> waiting_;
};

}  // namespace mcast
