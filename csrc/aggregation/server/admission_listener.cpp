// Closing is done in three steps, since a close() with unread input makes the kernel send RST,
// which could destroy the refusal that is being sent: send, shut our side, read until the other
// side has closed or the time limit has passed.
#include "aggregation/server/admission_listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/accept.h"
#include "base/descriptors.h"
#include "base/resolve.h"
#include "transport/udp/half_open.h"

namespace mcast::service {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kReadBytes = 16 << 10;
constexpr Nanos kFinishPatience = 2 * kSecond;

}  // namespace

Status AdmissionListener::open(const std::string& host, uint16_t port) {
  address_ = {{}, port};
  if (!host.empty()) {
    const auto found = resolve_host(host, port);
    if (!found.ok()) return Status(Code::kInvalidArgument, found.status().message());
    address_ = found->front();
  }
  Result<Fd> fd = listen_at(address_, kBacklog);
  if (!fd.ok()) return fd.status();
  listener_ = std::move(fd).value();
  return {};
}

void AdmissionListener::make_room(const IpAddress& host, bool known, Visitor& visitor) {
  std::vector<HalfOpenSeat<IpAddress>> seats;
  std::vector<LinkId> whose;
  for (const auto& [id, link] : links_) {
    if (link.state == State::kServed || link.state == State::kEnded) continue;
    seats.push_back({link.host, link.known, link.since});
    whose.push_back(id);
  }
  const auto goes = kRules.displaced(seats, host, known);
  if (!goes) return;
  const auto link = links_.find(whose[*goes]);
  const bool asked = link->second.state == State::kAsking;
  reset_connection(std::move(link->second.fd));
  links_.erase(link);
  if (asked) visitor.on_link_end(whose[*goes], true);
}

void AdmissionListener::watch(std::vector<pollfd>& list) {
  watched_.clear();
  listening_ = listener_.valid() && accept_from_ == 0;
  if (listening_) list.push_back({listener_.get(), POLLIN, 0});
  for (const auto& [id, link] : links_) {
    const short out = link.out.empty() ? short{0} : short{POLLOUT};
    list.push_back({link.fd.get(), static_cast<short>(POLLIN | out), 0});
    watched_.push_back(id);
  }
}

void AdmissionListener::serve(std::span<const pollfd> ready, Nanos now, Visitor& visitor) {
  size_t at = listening_ ? 1 : 0;
  for (const LinkId id : watched_) {
    const short events = ready[at++].revents;
    Link& link = links_.at(id);
    if ((events & POLLOUT) != 0) write(link);
    if ((events & ~POLLOUT) != 0 && link.state != State::kEnded) read(id, link, now, visitor);
  }
  expire(now, visitor);
  std::erase_if(links_, [](const auto& entry) { return entry.second.state == State::kEnded; });
  if (listening_ && ready[0].revents != 0) accept_all(now, visitor);
}

void AdmissionListener::accept_all(Nanos now, Visitor& visitor) {
  for (size_t i = 0; i < kMostAsking; i++) {
    Accepted next = accept_connection(listener_.get(), kMostAsking);
    if (!next.fd.valid()) {
      if (next.error == 0) return;
      if (warnings_.allow(now)) {
        log(LogLevel::kWarn, "cannot accept a connection: %s; %s", std::strerror(next.error),
            descriptor_text().c_str());
      }
      accept_from_ = now + kAcceptPause;
      return;
    }
    keep_alive(next.fd.get());
    const IpAddress host = next.from.address;
    const bool known = visitor.knows(host);
    make_room(host, known, visitor);
    const LinkId id = next_++;
    Link& link = links_[id];
    link.fd = std::move(next.fd);
    link.host = host;
    link.known = known;
    link.since = now;
    link.until = now + kAskPatience;
    visitor.on_link(id);
  }
}

void AdmissionListener::read(LinkId id, Link& link, Nanos now, Visitor& visitor) {
  char bytes[kReadBytes];
  const ssize_t got = ::recv(link.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  const bool ours = link.state == State::kFinishing;
  if (got <= 0) {
    link.state = State::kEnded;
    if (!ours) visitor.on_link_end(id, !link.in.between());
    return;
  }
  if (ours) return;  // read so that our last bytes arrive, and discarded
  link.in.append({bytes, static_cast<size_t>(got)});
  for (std::string record; link.state < State::kFinishing && link.in.next(record);) {
    visitor.on_record(id, link.host, record, now);
  }
  if (link.in.broken() && link.state < State::kFinishing) {
    link.state = State::kEnded;
    visitor.on_link_end(id, true);
  }
}

void AdmissionListener::write(Link& link) {
  while (!link.out.empty()) {
    const ssize_t sent =
        ::send(link.fd.get(), link.out.data(), link.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) link.out.clear();  // reading shows how it has ended
    if (sent > 0) link.out.erase(0, static_cast<size_t>(sent));
  }
  if (link.state != State::kFinishing || link.said_all) return;
  link.said_all = true;
  (void)::shutdown(link.fd.get(), SHUT_WR);
}

void AdmissionListener::expire(Nanos now, Visitor& visitor) {
  if (now >= accept_from_) accept_from_ = 0;
  for (auto& [id, link] : links_) {
    if (link.state == State::kEnded || now < link.until) continue;
    const bool asking = link.state == State::kAsking;
    link.state = State::kEnded;
    if (asking) visitor.on_link_end(id, true);
  }
}

Nanos AdmissionListener::deadline() const {
  Nanos next = accept_from_ == 0 ? kNever : accept_from_;
  for (const auto& [id, link] : links_) next = std::min(next, link.until);
  return next;
}

void AdmissionListener::keep(LinkId id) {
  const auto link = links_.find(id);
  if (link == links_.end() || link->second.state != State::kAsking) return;
  link->second.state = State::kServed;
  link->second.until = kNever;
}

void AdmissionListener::send_text(LinkId id, const std::string& text) {
  const auto link = links_.find(id);
  if (link == links_.end() || link->second.state > State::kServed) return;
  link->second.out += wire::framed(text);
  write(link->second);
}

void AdmissionListener::finish(LinkId id, Nanos now) {
  const auto link = links_.find(id);
  if (link == links_.end() || link->second.state > State::kServed) return;
  link->second.state = State::kFinishing;
  link->second.until = now + kFinishPatience;
  write(link->second);
}

}  // namespace mcast::service
