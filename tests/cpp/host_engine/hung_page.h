// A page that stays absent until the test provides it: a thread that touches it waits in the
// kernel.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/types.h"

namespace mcast::test {

class HungPage {
 public:
  static constexpr size_t kPage = 4096;
  // Replaces the page at `at`, unless that is null.
  explicit HungPage(std::byte* at = nullptr) {
    const int fixed = at != nullptr ? MAP_FIXED : 0;
    void* const data =
        ::mmap(at, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    if (data == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(data);
    fd_ = Fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    struct uffdio_api api {};
    api.api = UFFD_API;
    struct uffdio_register range {};
    range.range = {reinterpret_cast<uint64_t>(data_), kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    hangs_ = fd_.valid() && ::ioctl(fd_.get(), UFFDIO_API, &api) == 0 &&
             ::ioctl(fd_.get(), UFFDIO_REGISTER, &range) == 0;
  }
  ~HungPage() { come(); }
  HungPage(const HungPage&) = delete;
  HungPage& operator=(const HungPage&) = delete;

  // False if not allowed here (vm.unprivileged_userfaultfd, seccomp).
  bool hangs() const { return hangs_; }
  std::byte* data() const { return data_; }
  // Returns true if a thread waits for it.
  bool touched() const {
    struct pollfd waits {
      fd_.get(), POLLIN, 0
    };
    return ::poll(&waits, 1, 0) == 1;
  }
  // Provides the page, filled with zeros.
  void come() {
    if (!hangs_) return;
    hangs_ = false;
    struct uffdio_zeropage zero {};
    zero.range = {reinterpret_cast<uint64_t>(data_), kPage};
    EXPECT_EQ(::ioctl(fd_.get(), UFFDIO_ZEROPAGE, &zero), 0);
    fd_.reset();
  }

 private:
  std::byte* data_ = nullptr;
  Fd fd_;
  bool hangs_ = false;
};

}  // namespace mcast::test
