// The program's own sendmsg() and sendmmsg() take precedence over libc's, also for the core that is
// linked into it. Calls that are not refused go to the real kernel.
#include "kernel.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace mcast::test {
namespace {

// Written before the threads that send exist.
Refusal rule;
std::atomic<uint64_t> calls{0}, refusals{0};

bool refuse(bool datagram) {
  if (rule.error == 0 || datagram == rule.streams) return false;
  const uint64_t call = calls.fetch_add(1);
  if (call < rule.after || (call - rule.after) % rule.of >= rule.run) return false;
  refusals.fetch_add(1);
  errno = rule.error;
  return true;
}

}  // namespace

void refuse_sends(const Refusal& refusal) { rule = refusal; }
uint64_t refused_sends() { return refusals.load(); }

}  // namespace mcast::test

// Only datagrams are sent to an address.
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (mcast::test::refuse(message->msg_name != nullptr)) return -1;
  return syscall(SYS_sendmsg, fd, message, flags);
}

extern "C" int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (mcast::test::refuse(count > 0 && messages[0].msg_hdr.msg_name != nullptr)) return -1;
  return static_cast<int>(syscall(SYS_sendmmsg, fd, messages, count, flags));
}
