// Checks by TCP whether a network carries traffic, because a group needs TCP first: a reachable
// host replies, with a connection or with a refusal. Hundreds are tried at a time, to limit the
// number of descriptors.
#include "runtime/network_memory.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/fd.h"
#include "base/socket_address.h"

namespace mcast {
namespace {

constexpr Nanos kPatience = 2 * kSecond;  // a lost SYN is sent again after a second
constexpr size_t kAtOnce = 256;

bool is_answer(int error) { return error == 0 || error == ECONNREFUSED; }

struct Attempt {
  IpAddress address;
  Fd fd;
  bool over = false, answered = false;
};

Attempt attempt(const OwnAddress& own, const Endpoint& far) {
  Attempt a;
  a.address = far.address;
  a.fd = Fd(::socket(family_of(own.address), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool bound = a.fd.valid() && bind_to(a.fd.get(), {own.address, 0}) == 0;
  const int error = !bound ? EADDRNOTAVAIL : connect_to(a.fd.get(), far) == 0 ? 0 : errno;
  a.over = error != EINPROGRESS;
  a.answered = a.over && is_answer(error);
  return a;
}

void settle(Attempt& a) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(a.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  a.over = true;
  a.answered = is_answer(error);
}

void wait_for(std::vector<Attempt>& attempts) {
  const Nanos until = monotonic_now() + kPatience;
  for (Nanos now = monotonic_now(); now < until; now = monotonic_now()) {
    std::vector<pollfd> open;
    std::vector<Attempt*> whose;
    for (Attempt& a : attempts) {
      if (a.over) continue;
      open.push_back({a.fd.get(), POLLOUT, 0});
      whose.push_back(&a);
    }
    if (open.empty()) return;
    (void)::poll(open.data(), open.size(), static_cast<int>((until - now) / kMilli) + 1);
    for (size_t i = 0; i < open.size(); i++) {
      if (open[i].revents != 0) settle(*whose[i]);
    }
  }
}

}  // namespace

std::string NetworkMemory::last() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return last_;
}

void NetworkMemory::note(const std::string& network) {
  const std::lock_guard<std::mutex> held(mutex_);
  last_ = network;
}

bool NetworkMemory::reaches(const OwnAddress& own, const std::vector<Endpoint>& far) {
  const std::lock_guard<std::mutex> held(mutex_);
  std::vector<Endpoint> untried;
  for (const Endpoint& one : far) {
    if (may_reach_ && !may_reach_(one.address.text(), one.port).ok()) return false;
    if (answered_.count(one.address) == 0) untried.push_back(one);
  }
  for (size_t start = 0; start < untried.size(); start += kAtOnce) {
    std::vector<Attempt> attempts;
    const size_t end = std::min(untried.size(), start + kAtOnce);
    for (size_t i = start; i < end; i++) attempts.push_back(attempt(own, untried[i]));
    wait_for(attempts);
    for (const Attempt& a : attempts) answered_[a.address] = a.answered;
    // One host that does not reply is enough.
    if (!std::all_of(attempts.begin(), attempts.end(), [](auto& a) { return a.answered; })) break;
  }
  return std::all_of(far.begin(), far.end(), [this](const Endpoint& one) {
    const auto it = answered_.find(one.address);
    return it != answered_.end() && it->second;
  });
}

}  // namespace mcast
