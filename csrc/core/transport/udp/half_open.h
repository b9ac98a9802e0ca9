// Accepted connections that have not sent a valid Hello yet: a fixed number of places, without
// memory of their own. No single source can occupy all of them (base/half_open_rules.h; members'
// addresses are known). A displaced connection is ended by RST.
//
// Used by the lane's thread only. Events of a place are tagged with the place.
#pragma once

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

// Sends RST instead of a FIN: no state of the connection is left behind here.
void reset_connection(Fd fd);

class HalfOpen {
 public:
  static constexpr size_t kPlaces = 64;
  static constexpr size_t kPerStranger = 8;  // of one source that is not a member's address
  static constexpr size_t kStrangers = 32;   // of all non-members; the rest is for members
  static constexpr Nanos kPatience = guarded::kPatience;

  struct Place {
    Fd fd;  // invalid if the place is free
    Source from;
    bool member = false;
    Nanos since = 0;
    size_t got = 0;            // bytes received of the awaited message,
    size_t size = kHelloSize;  // and its size
    std::array<std::byte, crypto::kGuardedHelloSize> bytes{};
    // Guarded endpoints only. The Hello is the one that was answered, while the confirmation is
    // awaited.
    std::optional<guarded::Acceptor> acceptor;
    std::optional<Hello> answered;

    // Starts to await another message, of `bytes_of_it` bytes.
    void await(size_t bytes_of_it) {
      got = 0;
      size = bytes_of_it;
    }
  };
  enum class Io { kComplete, kAgain, kSilent, kBroken };

  explicit HalfOpen(Epoll& epoll) : epoll_(epoll) {}  // outlives this
  ~HalfOpen();

  // Registers the address of peers that were added; it is kept permanently, as the peers are.
  void add_member(const IpAddress& address);
  // Returns null if the connection cannot be watched. `displaced` is set to the source whose
  // connection had to be closed, if any.
  Place* admit(Fd fd, Source from, Nanos now, Source& displaced);
  // Returns the place that an event belongs to, or null if it is not in use any more.
  Place* find(const void* tag);
  bool owns(const void* tag) const;
  // Reads on, up to the end of the message and never further. kSilent: the connection ended before
  // the first byte.
  Io read(Place& place);
  // Returns the connection, which is not watched any more; the place is free.
  Fd release(Place& place);
  void reset(Place& place) { reset_connection(release(place)); }

  // Runs `late(place)`, which resets it, for each place whose time limit has passed. `away`: this
  // process was stopped, so every place gets the full time again.
  template <typename Late>
  void expire(Nanos now, bool away, Late&& late) {
    for (Place& place : places_) {
      if (!place.fd.valid()) continue;
      if (away) place.since = now;
      if (now - place.since >= kPatience) late(place);
    }
  }
  // Time at which the next place expires.
  Nanos next() const;

 private:
  static constexpr HalfOpenRules kRules{kPlaces, kPerStranger, kStrangers};
  Place* choose(Source from, bool member);

  Epoll& epoll_;
  std::array<Place, kPlaces> places_;
  std::vector<IpAddress> members_;  // addresses, sorted
};

}  // namespace mcast
