// The file is mapped read-only: the ranks of a job share it, and only the test writes.
#include "base/test_clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "base/fd.h"

namespace mcast::test_clock {

constinit std::atomic<const std::atomic<int64_t>*> page{nullptr};

Status use(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Status::system(errno, "open " + path);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return Status::system(errno, "stat " + path);
  // A mapping beyond the end of the file would cause a bus error when the clock is first read.
  if (facts.st_size < static_cast<off_t>(sizeof(int64_t))) {
    return Status(Code::kInvalidArgument, "clock file " + path + " too short");
  }
  void* const at = ::mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return Status::system(errno, "map " + path);
  page.store(static_cast<const std::atomic<int64_t>*>(at), std::memory_order_relaxed);
  return {};
}

Status use_environment() {
  const char* const path = std::getenv("MCAST_TEST_CLOCK");
  return path == nullptr ? Status() : use(path);
}

}  // namespace mcast::test_clock
