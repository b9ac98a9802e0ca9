// Who must go when a connection comes to a listener whose places for connections that have proved
// nothing yet are limited. A source that is not known has a few places, all such sources together
// some, and the rest is kept for known ones; where none is left, the oldest of the source with most
// places goes. So a flood from one address only hurts that address.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"

namespace mcast {

struct HalfOpenSeat {
  uint32_t source = 0;  // an address, a user of the host
  bool known = false;
  Nanos since = 0;
};

struct HalfOpenRules {
  size_t places;
  size_t per_stranger;  // of a source that is not known
  size_t strangers;     // of all of those

  // The index of the one that goes so that `source` may come; none: there is a place.
  std::optional<size_t> displaced(std::span<const HalfOpenSeat> seats, uint32_t source,
                                  bool known) const {
    if (!known && count(seats, source) >= per_stranger) {
      const HalfOpenSeat* oldest = nullptr;
      for (const HalfOpenSeat& seat : seats) {
        if (seat.known || seat.source != source) continue;
        if (oldest == nullptr || seat.since < oldest->since) oldest = &seat;
      }
      if (oldest != nullptr) return index(seats, oldest);
    }
    const auto unknown = static_cast<size_t>(
        std::count_if(seats.begin(), seats.end(), [](const auto& seat) { return !seat.known; }));
    if (!known && unknown >= strangers) return greediest(seats, true);
    if (seats.size() >= places) return greediest(seats, false);
    return std::nullopt;
  }

 private:
  static size_t count(std::span<const HalfOpenSeat> seats, uint32_t source) {
    return static_cast<size_t>(std::count_if(
        seats.begin(), seats.end(), [source](const auto& seat) { return seat.source == source; }));
  }
  static size_t index(std::span<const HalfOpenSeat> seats, const HalfOpenSeat* seat) {
    return static_cast<size_t>(seat - seats.data());
  }
  // The oldest of the source with most places, of those that are not known or of all.
  static std::optional<size_t> greediest(std::span<const HalfOpenSeat> seats, bool unknown) {
    const HalfOpenSeat* found = nullptr;
    size_t most = 0;
    for (const HalfOpenSeat& seat : seats) {
      if (unknown && seat.known) continue;
      const size_t has = count(seats, seat.source);
      if (has > most || (has == most && found != nullptr && seat.since < found->since)) {
        found = &seat;
        most = has;
      }
    }
    if (found == nullptr) return std::nullopt;
    return index(seats, found);
  }
};

}  // namespace mcast
