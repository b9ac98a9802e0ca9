// Connections that ended while they waited are skipped.
#include "base/accept.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/descriptors.h"

namespace mcast {

Accepted accept_connection(int listener, uint64_t more) noexcept {
  for (;;) {
    Accepted next;
    socklen_t length = sizeof next.from;
    next.fd = Fd(::accept4(listener, reinterpret_cast<sockaddr*>(&next.from), &length,
                           SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (next.fd.valid()) return next;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE && make_descriptor_room(more)) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) next.error = errno;
    return next;
  }
}

}  // namespace mcast
