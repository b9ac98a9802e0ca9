// A client offers 16 random bytes of its memory, by value and address. Access by pid reads them in
// the same call as the wanted bytes, which the kernel carries out on one address space; if they
// match, the rest came from the right process. A process that has started another program, or a
// process that reuses the pid, does not have them. They are also read before each call that writes.
// Access by descriptor does not need this, since the file belongs to one address space.
//
// A descriptor is accepted only if it is on procfs and its name is "mem": any other file sent by a
// client could block in its own ways, or could be a file that the engine would write for an
// attacker.
#include "host_engine/server/client_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace mcast::service {
namespace {

// Ok if the file is a process's memory, open for reading and writing.
Status check_file(int fd) {
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(fd, &system) != 0 || system.f_type != PROC_SUPER_MAGIC || ::fstat(fd, &file) != 0 ||
      !S_ISREG(file.st_mode)) {
    return Status(Code::kInvalidArgument, "its descriptor is not a file of procfs");
  }
  std::array<char, 4096> path;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  const std::string_view name(path.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
  if (!name.ends_with("/mem")) {
    return Status(Code::kInvalidArgument, "its descriptor is not /proc/self/mem");
  }
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return Status(Code::kInvalidArgument, "its descriptor is not open for reading and writing");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ClientMemory>> ClientMemory::open(const ipc::MemoryOffer& offer,
                                                         Client client, Fd file) {
  Status no_file(Code::kUnavailable, "it has sent no descriptor");
  if (file.valid()) {
    no_file = check_file(file.get());
    if (!no_file.ok()) file.reset();
  }
  std::unique_ptr<ClientMemory> memory(new ClientMemory(offer, client.pid, std::move(file)));
  const bool same = client.uid == ::geteuid() && client.pid > 0;
  const Status no_vm = same ? memory->try_vm()
                            : Status(Code::kUnavailable,
                                     "the engine runs as another user, or in "
                                     "another pid namespace");
  if (no_vm.ok()) {
    memory->method_ = ipc::AccessMethod::kVm;
    memory->file_.reset();
    return memory;
  }
  if (no_file.ok()) no_file = memory->try_file();
  if (no_file.ok()) return memory;
  return Status(Code::kUnavailable, "memory of process " + std::to_string(client.pid) +
                                        " cannot be reached: " + no_vm.message() + "; " +
                                        no_file.message());
}

Status ClientMemory::try_vm() {
  errno = 0;
  if (is_client()) return {};
  return Status(Code::kUnavailable,
                errno != 0 ? std::string(std::strerror(errno)) : "another process has its pid");
}

Status ClientMemory::try_file() {
  std::array<uint64_t, 2> seen{};
  const Span word{cookie_.address, reinterpret_cast<std::byte*>(seen.data()), sizeof(seen)};
  if (moved_file(word, true) == Moved::kAll && seen == cookie_.cookie) return {};
  return Status(Code::kInvalidArgument, "its descriptor is of another process");
}

bool ClientMemory::is_client() {
  std::array<uint64_t, 2> seen{};
  const struct iovec here { seen.data(), sizeof(seen) };
  const struct iovec there { reinterpret_cast<void*>(cookie_.address), sizeof(seen) };
  return ::process_vm_readv(pid_, &here, 1, &there, 1, 0) == static_cast<ssize_t>(sizeof(seen)) &&
         seen == cookie_.cookie;
}

ClientMemory::Moved ClientMemory::pull(std::span<const Span> spans) {
  return method_ == ipc::AccessMethod::kVm ? move_vm(spans, true) : move_file(spans, true);
}

ClientMemory::Moved ClientMemory::push(std::span<const Span> spans) {
  return method_ == ipc::AccessMethod::kVm ? move_vm(spans, false) : move_file(spans, false);
}

ClientMemory::Moved ClientMemory::move_vm(std::span<const Span> spans, bool pull) {
  std::array<struct iovec, kMostSpans + 1> here, there;
  std::array<uint64_t, 2> seen{};
  size_t count = 0;
  ssize_t bytes = 0;
  const auto add = [&](uint64_t address, void* at, size_t length) {
    here[count] = {at, length};
    there[count++] = {reinterpret_cast<void*>(address), length};
    bytes += static_cast<ssize_t>(length);
  };
  for (const Span& span : spans) add(span.there, span.here, span.length);
  if (pull) {
    add(cookie_.address, seen.data(), sizeof(seen));
  } else if (!is_client()) {
    return Moved::kGone;
  }
  const auto call = pull ? ::process_vm_readv : ::process_vm_writev;
  const ssize_t moved = call(pid_, here.data(), count, there.data(), count, 0);
  if (moved == bytes && (!pull || seen == cookie_.cookie)) return Moved::kAll;
  return is_client() ? Moved::kFault : Moved::kGone;
}

ClientMemory::Moved ClientMemory::move_file(std::span<const Span> spans, bool pull) {
  for (const Span& span : spans) {
    if (const Moved moved = moved_file(span, pull); moved != Moved::kAll) return moved;
  }
  return Moved::kAll;
}

// The kernel returns 0 bytes if the address space is gone, EIO if nothing is mapped.
ClientMemory::Moved ClientMemory::moved_file(const Span& span, bool pull) {
  for (size_t at = 0; at < span.length;) {
    const auto offset = static_cast<off_t>(span.there + at);
    const size_t rest = span.length - at;
    const ssize_t moved = pull ? ::pread(file_.get(), span.here + at, rest, offset)
                               : ::pwrite(file_.get(), span.here + at, rest, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? Moved::kGone : Moved::kFault;
    at += static_cast<size_t>(moved);
  }
  return Moved::kAll;
}

}  // namespace mcast::service
