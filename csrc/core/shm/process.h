// Another process of this host: whether it lives, and its memory.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Movable. const functions: any thread.
class PeerProcess {
 public:
  PeerProcess() = default;
  explicit PeerProcess(pid_t pid);
  ~PeerProcess();
  // This process, as another would see it: used by simulated ranks to read each other's memory.
  static PeerProcess own();
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess& operator=(PeerProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  // A stopped process is alive; a zombie is not.
  bool alive() const;
  // Copies from the process's memory, without its cooperation (process_vm_readv). Errors give the
  // reason: it ended, it denies access, or nothing is mapped there.
  Status read(uint64_t address, std::byte* to, size_t length) const;
  // For the child of a fork.
  void abandon() noexcept;

 private:
  pid_t pid_ = 0;
  int pidfd_ = -1;
};

// If the Yama module restricts tracing to ancestors (ptrace_scope 1), allows every process of this
// user to read this one's memory. One call per process is enough.
void allow_readers();

}  // namespace mcast
