// Another process's memfd is opened through /proc/<pid>/fd, which the kernel allows to whoever may
// inspect that process: the same user, and the same or an outer process namespace. The seals are
// checked before it is mapped, since a file that can shrink would turn reads into SIGBUS, as would
// huge pages that are not there.
#include "host/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace mcast {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Segment::~Segment() {
  close_fd();
  if (data_ != nullptr) ::munmap(data_, size_);
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

void Segment::close_fd() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<Segment> Segment::map(int fd, size_t bytes) {
  Segment segment;
  segment.fd_ = fd;
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    return Status::system(errno, "cannot map " + std::to_string(bytes) + " shared bytes");
  }
  segment.data_ = static_cast<std::byte*>(at);
  segment.size_ = bytes;
  (void)::madvise(at, bytes, MADV_DONTFORK);
  (void)::madvise(at, bytes, MADV_DONTDUMP);  // a dump would touch every page of it
  return segment;
}

Result<Segment> Segment::create(const char* label, size_t bytes) {
  // Beyond this limit the kernel would not refuse but send SIGXFSZ.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Status(Code::kUnavailable, "shared memory of " + std::to_string(bytes) +
                                          " bytes is beyond the file size limit (ulimit -f)");
  }
  const int fd = ::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Status::system(errno, "memfd_create");
  if (::fchmod(fd, 0600) != 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    const int error = errno;
    ::close(fd);
    return Status::system(error,
                          "cannot make shared memory of " + std::to_string(bytes) + " bytes");
  }
  return map(fd, bytes);
}

Result<Segment> Segment::attach(pid_t pid, int fd, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (mine < 0) return Status::system(errno, "cannot open " + path);
  return adopt(mine, bytes, path);
}

Result<Segment> Segment::adopt(int fd, size_t bytes, const std::string& name) {
  struct stat info {};
  struct statfs system {};
  const int seals = ::fcntl(fd, F_GET_SEALS);  // -1: no such file, all bits
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd, &info) != 0 ||
      ::fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC ||
      info.st_size != static_cast<off_t>(bytes)) {
    ::close(fd);
    return Status(Code::kUnavailable, name + " is not the shared memory that was announced");
  }
  Result<Segment> mapped = map(fd, bytes);
  if (mapped.ok()) mapped->close_fd();
  return mapped;
}

}  // namespace mcast
