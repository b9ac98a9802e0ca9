// Accepted connections that have not said a valid Hello yet: a fixed number of places, no memory of
// their own. Nobody can hold all of them (base/half_open_rules.h; members' addresses are known).
// Who goes is told by RST.
//
// Used by the lane's thread only. Events of a place are tagged with it.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "base/half_open_rules.h"
#include "base/refusal.h"
#include "base/types.h"
#include "transport/guarded/handshake.h"
#include "transport/udp/socket.h"
#include "transport/udp/stream_wire.h"

namespace mcast {

// Sends RST instead of a FIN: nothing of the connection is left behind here.
void reset_connection(Fd fd);

class HalfOpen {
 public:
  static constexpr size_t kPlaces = 64;
  static constexpr size_t kPerStranger = 8;  // of a source that is no member's address
  static constexpr size_t kStrangers = 32;   // of all of those; the rest is kept for members
  static constexpr Nanos kPatience = guarded::kPatience;

  struct Place {
    Fd fd;  // not valid: free
    Source from;
    bool member = false;
    Nanos since = 0;
    size_t got = 0;            // bytes of the message that is awaited,
    size_t size = kHelloSize;  // and its size
    std::array<std::byte, crypto::kGuardedHelloSize> bytes{};
    // Of a guarded endpoint; and the Hello that was answered, if the confirmation is awaited.
    std::optional<guarded::Acceptor> acceptor;
    std::optional<Hello> answered;

    // Another message, of so many bytes, is awaited.
    void await(size_t bytes_of_it) {
      got = 0;
      size = bytes_of_it;
    }
  };
  enum class Io { kComplete, kAgain, kSilent, kBroken };

  explicit HalfOpen(Epoll& epoll) : epoll_(epoll) {}  // outlives this
  ~HalfOpen();

  // Peers that were added have this address; kept for good, as they are.
  void add_member(uint32_t address);
  // Null: it cannot be watched. `displaced` is set to the source whose connection had to go, if one
  // had to.
  Place* admit(Fd fd, Source from, Nanos now, Source& displaced);
  // Whose event it is; null: of none that is still there.
  Place* find(const void* tag);
  bool owns(const void* tag) const;
  // Reads on, up to the end of the message and never further. kSilent: ended before the first byte.
  Io read(Place& place);
  // The connection, which is not watched any more; the place is free.
  Fd release(Place& place);
  void reset(Place& place) { reset_connection(release(place)); }

  // Runs `late(place)`, which resets it, for those whose time is over. `away`: this process was
  // stopped, so all get their time again.
  template <typename Late>
  void expire(Nanos now, bool away, Late&& late) {
    for (Place& place : places_) {
      if (!place.fd.valid()) continue;
      if (away) place.since = now;
      if (now - place.since >= kPatience) late(place);
    }
  }
  // When the next one's time is over.
  Nanos next() const;

 private:
  static constexpr HalfOpenRules kRules{kPlaces, kPerStranger, kStrangers};
  Place* choose(Source from, bool member);

  Epoll& epoll_;
  std::array<Place, kPlaces> places_;
  std::vector<uint32_t> members_;  // addresses, sorted
};

}  // namespace mcast
