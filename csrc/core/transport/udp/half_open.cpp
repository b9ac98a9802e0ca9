// A Hello has normally arrived already when its connection is accepted, so places are reused
// quickly.
#include "transport/udp/half_open.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

namespace mcast {

void reset_connection(Fd fd) {
  const linger now{1, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

HalfOpen::~HalfOpen() {
  for (Place& place : places_) {
    if (place.fd.valid()) epoll_.remove(place.fd.get());
  }
}

void HalfOpen::add_member(const IpAddress& address) {
  const auto at = std::lower_bound(members_.begin(), members_.end(), address);
  if (at == members_.end() || *at != address) members_.insert(at, address);
}

HalfOpen::Place* HalfOpen::admit(Fd fd, Source from, Nanos now, Source& displaced) {
  const bool member = std::binary_search(members_.begin(), members_.end(), from.address);
  Place* const place = choose(from, member);
  if (place->fd.valid()) {
    displaced = place->from;
    reset(*place);
  }
  if (!epoll_.add(fd.get(), EPOLLIN, place).ok()) return nullptr;
  place->fd = std::move(fd);
  place->from = from;
  place->member = member;
  place->since = now;
  place->await(kHelloSize);
  return place;
}

HalfOpen::Place* HalfOpen::choose(Source from, bool member) {
  std::array<HalfOpenSeat<IpAddress>, kPlaces> seats;
  std::array<Place*, kPlaces> whose{};
  size_t taken = 0;
  for (Place& p : places_) {
    if (!p.fd.valid()) continue;
    whose[taken] = &p;
    seats[taken++] = {p.from.address, p.member, p.since};
  }
  const std::span<const HalfOpenSeat<IpAddress>> all(seats.data(), taken);
  if (const auto goes = kRules.displaced(all, from.address, member)) return whose[*goes];
  return std::find_if(places_.begin(), places_.end(), [](const Place& p) { return !p.fd.valid(); });
}

// Called for every event of the endpoint, so it does not search.
bool HalfOpen::owns(const void* tag) const {
  const std::less<const void*> before;
  return !before(tag, places_.data()) && before(tag, places_.data() + places_.size());
}

HalfOpen::Place* HalfOpen::find(const void* tag) {
  if (!owns(tag)) return nullptr;
  const auto offset = static_cast<const Place*>(tag) - places_.data();
  Place& place = places_[static_cast<size_t>(offset)];
  return place.fd.valid() ? &place : nullptr;
}

HalfOpen::Io HalfOpen::read(Place& place) {
  while (place.got < place.size) {
    const ssize_t got = ::recv(place.fd.get(), place.bytes.data() + place.got,
                               place.size - place.got, MSG_DONTWAIT);
    if (got > 0) {
      place.got += static_cast<size_t>(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Io::kAgain;
    return place.got == 0 ? Io::kSilent : Io::kBroken;
  }
  return Io::kComplete;
}

Fd HalfOpen::release(Place& place) {
  epoll_.remove(place.fd.get());
  place.acceptor.reset();
  place.answered.reset();
  return std::exchange(place.fd, Fd());
}

Nanos HalfOpen::next() const {
  Nanos next = kNever;
  for (const Place& p : places_) {
    if (p.fd.valid()) next = std::min(next, p.since + kPatience);
  }
  return next;
}

}  // namespace mcast
