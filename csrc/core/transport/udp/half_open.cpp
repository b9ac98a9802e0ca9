// A stranger that has used up its share displaces the oldest of its own, so a flood from one
// address only hurts that address; else the greediest stranger pays, and a member takes any place.
// A Hello normally lies behind the connection already when that is accepted, so the places turn
// over fast.
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

void HalfOpen::add_member(uint32_t address) {
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
  if (!member && count(from.address) >= kPerStranger) {
    Place* oldest = nullptr;
    for (Place& p : places_) {
      if (!p.fd.valid() || p.member || p.from.address != from.address) continue;
      if (oldest == nullptr || p.since < oldest->since) oldest = &p;
    }
    if (oldest != nullptr) return oldest;
  }
  if (!member && strangers() >= kStrangers) return greediest(true);
  const auto free =
      std::find_if(places_.begin(), places_.end(), [](const Place& p) { return !p.fd.valid(); });
  return free != places_.end() ? &*free : greediest(false);
}

HalfOpen::Place* HalfOpen::greediest(bool strangers) {
  Place* found = nullptr;
  size_t most = 0;
  for (Place& p : places_) {
    if (!p.fd.valid() || (strangers && p.member)) continue;
    const size_t has = count(p.from.address);
    if (has > most || (has == most && p.since < found->since)) {
      found = &p;
      most = has;
    }
  }
  return found;
}

size_t HalfOpen::count(uint32_t address) const {
  return static_cast<size_t>(std::count_if(places_.begin(), places_.end(), [address](auto& p) {
    return p.fd.valid() && p.from.address == address;
  }));
}

size_t HalfOpen::strangers() const {
  return static_cast<size_t>(std::count_if(
      places_.begin(), places_.end(), [](const Place& p) { return p.fd.valid() && !p.member; }));
}

// Asked for every event of the endpoint: no search.
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
