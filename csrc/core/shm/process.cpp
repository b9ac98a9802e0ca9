// Liveness is checked with a pidfd, which always refers to this process: its pid may be reused once
// it has ended. Kernels without pidfd (before 5.3) and sandboxes that forbid it use signal 0, and
// so does a poll that fails, for lack of memory or because this thread handled a signal: such a
// failure says nothing about the other process.
#include "shm/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

namespace mcast {

namespace {

// The same number on every architecture; C libraries before 2.30 do not define it.
constexpr long kPidfdOpen = 434;

}  // namespace

PeerProcess::PeerProcess(pid_t pid)
    : pid_(pid), pidfd_(static_cast<int>(::syscall(kPidfdOpen, pid, 0))) {}

PeerProcess PeerProcess::own() { return PeerProcess(::getpid()); }

PeerProcess::~PeerProcess() { abandon(); }

void PeerProcess::abandon() noexcept {
  if (pidfd_ >= 0) ::close(pidfd_);
  pidfd_ = -1;
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept { *this = std::move(other); }

PeerProcess& PeerProcess::operator=(PeerProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  return *this;
}

bool PeerProcess::alive() const {
  if (pidfd_ >= 0) {
    struct pollfd ask {
      pidfd_, POLLIN, 0
    };
    const int answers = ::poll(&ask, 1, 0);
    if (answers == 0) return true;
    if (answers > 0 && (ask.revents & POLLIN) != 0) return false;
  }
  return ::kill(pid_, 0) == 0 || errno != ESRCH;
}

Status PeerProcess::read(uint64_t address, std::byte* to, size_t length) const {
  while (length > 0) {
    struct iovec local {
      to, length
    };
    struct iovec remote {
      reinterpret_cast<void*>(address), length
    };
    const ssize_t got = ::process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == ESRCH) {
      return Status(Code::kPeerLost, "its process " + std::to_string(pid_) + " has ended");
    }
    if (got <= 0) {
      return Status::system(got < 0 ? errno : EFAULT,
                            "cannot read the memory of process " + std::to_string(pid_));
    }
    to += got;
    address += static_cast<uint64_t>(got);
    length -= static_cast<size_t>(got);
  }
  return {};
}

void allow_readers() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (file >> scope && scope == 1) (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace mcast
