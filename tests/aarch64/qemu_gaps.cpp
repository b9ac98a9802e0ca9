// Loaded before the C library under qemu's user mode (7.2), for what it does not have.
// tools/aarch64.sh builds it.
//
// IP_MULTICAST_IF: the socket is bound to the device instead, which qemu passes on.
// IP_MULTICAST_ALL: sockets also get what others of this host have joined at the same address and
// port, as if it could not be switched off. Memberships by an interface's index lose it on the way:
// they are asked for by its address. process_vm_readv(): of the own process, as the simulated
// cluster reads.
#include <dlfcn.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace {

using SetOption = int (*)(int, int, int, const void*, socklen_t);

int bind_to_device(SetOption next, int fd, const char* device) {
  const auto size = static_cast<socklen_t>(std::strlen(device) + 1);
  return next(fd, SOL_SOCKET, SO_BINDTODEVICE, device, size);
}

int member_by_address(SetOption next, int fd, int name, const ip_mreqn& wanted, ifreq& device) {
  if (ioctl(fd, SIOCGIFADDR, &device) != 0) return -1;
  ip_mreq by_address{};
  by_address.imr_multiaddr = wanted.imr_multiaddr;
  std::memcpy(&by_address.imr_interface, device.ifr_addr.sa_data + 2, sizeof(in_addr));
  return next(fd, IPPROTO_IP, name, &by_address, sizeof by_address);
}

}  // namespace

extern "C" int setsockopt(int fd, int level, int name, const void* value, socklen_t size) noexcept {
  static const auto next = reinterpret_cast<SetOption>(dlsym(RTLD_NEXT, "setsockopt"));
  if (level == IPPROTO_IP && name == IP_MULTICAST_ALL) return 0;
  const bool membership = name == IP_ADD_MEMBERSHIP || name == IP_DROP_MEMBERSHIP;
  if (level != IPPROTO_IP || (name != IP_MULTICAST_IF && !membership) || size != sizeof(ip_mreqn)) {
    return next(fd, level, name, value, size);
  }
  ip_mreqn wanted;
  std::memcpy(&wanted, value, sizeof wanted);
  ifreq device{};
  if (if_indextoname(static_cast<unsigned>(wanted.imr_ifindex), device.ifr_name) == nullptr) {
    return -1;
  }
  return membership ? member_by_address(next, fd, name, wanted, device)
                    : bind_to_device(next, fd, device.ifr_name);
}

extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals,
                                    const iovec* remote, unsigned long remotes,
                                    unsigned long) noexcept {
  if (pid != getpid() || locals != 1 || remotes != 1) {
    errno = ENOSYS;
    return -1;
  }
  const size_t size = local->iov_len < remote->iov_len ? local->iov_len : remote->iov_len;
  std::memcpy(local->iov_base, remote->iov_base, size);
  return static_cast<ssize_t>(size);
}
