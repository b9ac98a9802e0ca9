// Another process's memfd is opened through /proc/<pid>/fd, which the kernel allows to processes
// that may inspect that process: the same user, and the same or an outer process namespace. The
// seals are checked before mapping, since a file that can shrink would turn reads into SIGBUS, as
// would unavailable huge pages.
#include "shm/segment.h"

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
  if (data_ != nullptr) ::munmap(data_, size_);
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(file_, other.file_);
  return *this;
}

Result<Segment> Segment::map(Fd file, size_t bytes) {
  Segment segment;
  segment.file_ = std::move(file);
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), 0);
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
  // Beyond this limit the kernel sends SIGXFSZ instead of returning an error.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Status(Code::kUnavailable, "shared memory of " + std::to_string(bytes) +
                                          " bytes is beyond the file size limit (ulimit -f)");
  }
  Fd file(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Status::system(errno, "memfd_create");
  if (::fchmod(file.get(), 0600) != 0 || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status::system(errno,
                          "cannot make shared memory of " + std::to_string(bytes) + " bytes");
  }
  return map(std::move(file), bytes);
}

Result<Segment> Segment::attach(pid_t pid, int fd, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return Status::system(errno, "cannot open " + path);
  return adopt(std::move(file), bytes, path);
}

Result<Segment> Segment::adopt(Fd file, size_t bytes, const std::string& name) {
  struct stat info {};
  struct statfs system {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);  // -1: no such file, all bits
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &info) != 0 ||
      ::fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC ||
      info.st_size != static_cast<off_t>(bytes)) {
    return Status(Code::kUnavailable, name + " is not the shared memory that was announced");
  }
  Result<Segment> mapped = map(std::move(file), bytes);
  if (mapped.ok()) mapped->close_fd();
  return mapped;
}

}  // namespace mcast
