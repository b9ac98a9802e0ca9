// Connections that ended while they waited are skipped.
#include "base/accept.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/descriptors.h"
#include "base/socket_address.h"

namespace mcast {

Accepted accept_connection(int listener, uint64_t more) noexcept {
  for (;;) {
    Accepted next;
    SocketAddress from;
    next.fd = Fd(::accept4(listener, from.get(), from.size_room(), SOCK_NONBLOCK | SOCK_CLOEXEC));
    next.from = from.endpoint();
    if (next.fd.valid()) return next;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE && make_descriptor_room(more)) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) next.error = errno;
    return next;
  }
}

}  // namespace mcast
