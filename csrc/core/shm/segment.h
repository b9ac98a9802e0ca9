// Memory that several processes of one host map.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast {

// An anonymous file (memfd: no name in any file system, so nothing to clean up and no limit of
// /dev/shm), mapped shared, of fixed size (sealed), readable by this user only. The mapping is not
// inherited by forked children. Movable; unmaps when destroyed. Any thread, one at a time.
class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // The memory is zeroed. `label` is shown in /proc/<pid>/maps.
  static Result<Segment> create(const char* label, size_t bytes);
  // Maps the memory behind descriptor `fd` of process `pid`: it must be a sealed memfd of `bytes`.
  static Result<Segment> attach(pid_t pid, int fd, size_t bytes);
  // Maps a file that was received, and closes it; `name` is for the error.
  static Result<Segment> adopt(Fd file, size_t bytes, const std::string& name);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // The descriptor that others pass to attach(); -1 once closed.
  int fd() const { return file_.get(); }
  // No more processes can attach. The mapping stays.
  void close_fd() { file_.reset(); }

 private:
  static Result<Segment> map(Fd file, size_t bytes);
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Fd file_;
};

}  // namespace mcast
