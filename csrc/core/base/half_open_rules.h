// Selects the connection to close when another arrives at a listener whose places for
// unauthenticated connections are limited. An unknown source has a few places, all unknown sources
// together have some, and the rest is reserved for known ones; if none is left, the oldest
// connection of the source with most places is closed. So a flood from one address only hurts that
// address.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/types.h"

namespace mcast {

// `Who`: an address, a user of the host.
template <typename Who>
struct HalfOpenSeat {
  Who source{};
  bool known = false;
  Nanos since = 0;
};

struct HalfOpenRules {
  size_t places;
  size_t per_stranger;  // places of one unknown source
  size_t strangers;     // places of all unknown sources together

  // Index of the connection to close so that `source` can be accepted; none: there is a free place.
  template <typename Who>
  std::optional<size_t> displaced(const std::vector<HalfOpenSeat<Who>>& seats,
                                  const std::type_identity_t<Who>& source, bool known) const {
    return displaced(std::span<const HalfOpenSeat<Who>>(seats), source, known);
  }
  template <typename Who>
  std::optional<size_t> displaced(std::span<const HalfOpenSeat<Who>> seats,
                                  const std::type_identity_t<Who>& source, bool known) const {
    if (!known && count(seats, source) >= per_stranger) {
      const HalfOpenSeat<Who>* oldest = nullptr;
      for (const HalfOpenSeat<Who>& seat : seats) {
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
  template <typename Who>
  static size_t count(std::span<const HalfOpenSeat<Who>> seats, const Who& source) {
    return static_cast<size_t>(std::count_if(
        seats.begin(), seats.end(), [&source](const auto& seat) { return seat.source == source; }));
  }
  template <typename Who>
  static size_t index(std::span<const HalfOpenSeat<Who>> seats, const HalfOpenSeat<Who>* seat) {
    return static_cast<size_t>(seat - seats.data());
  }
  // The oldest connection of the source with most places, among the unknown sources or among all.
  template <typename Who>
  static std::optional<size_t> greediest(std::span<const HalfOpenSeat<Who>> seats, bool unknown) {
    const HalfOpenSeat<Who>* found = nullptr;
    size_t most = 0;
    for (const HalfOpenSeat<Who>& seat : seats) {
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
