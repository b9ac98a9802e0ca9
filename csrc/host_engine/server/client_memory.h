// The address space of a client whose memory the engine copies (engine_memory=copy).
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>

#include "base/fd.h"
#include "base/status.h"
#include "base/types.h"
#include "host_engine/ipc/control.h"

namespace mcast::service {

// There are two access methods, of which one is chosen permanently. kVm: process_vm_readv and
// process_vm_writev, by pid: only if both processes run as one user. kDescriptor: the client's own
// /proc/self/mem, which it has opened and sent: it belongs to that address space permanently, so
// neither an exec nor reuse of the pid can interfere, and it works for any user.
//
// Calls may hang as long as a page of the client is not available. Any thread, one at a time.
class ClientMemory {
 public:
  struct Client {
    pid_t pid = 0;
    uid_t uid = 0;
  };
  // `file` may be invalid. Returns an error with the reasons if neither method works.
  static Result<std::unique_ptr<ClientMemory>> open(const ipc::MemoryOffer& offer, Client client,
                                                    Fd file);

  struct Span {
    uint64_t there;   // address in the client
    std::byte* here;  // in this process
    size_t length;
  };
  static constexpr size_t kMostSpans = 64;  // per call

  // Result of the whole call. kGone: the client's process has ended, or runs another program.
  // kFault: nothing is mapped at a span, or not with that access. Some bytes may have been copied.
  enum class Moved : uint8_t { kAll, kFault, kGone };
  Moved pull(std::span<const Span> spans);
  Moved push(std::span<const Span> spans);

  ipc::AccessMethod method() const { return method_; }

 private:
  ClientMemory(const ipc::MemoryOffer& offer, pid_t pid, Fd file)
      : cookie_(offer), pid_(pid), file_(std::move(file)) {}
  Status try_vm();
  Status try_file();
  Moved move_vm(std::span<const Span> spans, bool pull);
  Moved move_file(std::span<const Span> spans, bool pull);
  Moved moved_file(const Span& span, bool pull);
  bool is_client();

  const ipc::MemoryOffer cookie_;
  const pid_t pid_;
  Fd file_;
  ipc::AccessMethod method_ = ipc::AccessMethod::kDescriptor;
};

}  // namespace mcast::service
