#include "base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#ifndef MADV_COLLAPSE  // in headers since Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace {

// What this program asked of the kernel last. Whether it has huge pages depends on the machine, so
// the tests see what it was asked, and what it did only where it said that it had done it.
struct Advice {
  const void* at = nullptr;
  size_t length = 0;
  int advice = 0;
  bool done = false;
} last;

}  // namespace

extern "C" int madvise(void* at, size_t length, int advice) noexcept {
  const bool done = syscall(SYS_madvise, at, length, advice) == 0;
  last = {at, length, advice, done};
  return done ? 0 : -1;
}

namespace mcast {
namespace {

// The mapping of an address in /proc/self/smaps.
struct Smaps {
  explicit Smaps(const void* at) {
    std::ifstream in("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(in, line);) {
      uintptr_t begin = 0, end = 0;
      char dash = 0;
      std::istringstream head(line);
      if (line.find('-') < 20 && head >> std::hex >> begin >> dash >> end && dash == '-') {
        inside = reinterpret_cast<uintptr_t>(at) >= begin && reinterpret_cast<uintptr_t>(at) < end;
      }
      size_t kib = 0;
      if (!inside) continue;
      if (std::sscanf(line.c_str(), "AnonHugePages: %zu kB", &kib) == 1) huge_bytes += kib << 10;
      if (line.rfind("VmFlags:", 0) == 0) advised = line.find(" hg") != std::string::npos;
    }
  }
  size_t huge_bytes = 0;
  bool advised = false;
};

bool switched_off() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  return !std::getline(file, text) || text.find("[never]") != std::string::npos;
}

struct Mapping {
  static constexpr size_t kBytes = 16u << 20;
  std::byte* data = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ~Mapping() { munmap(data, kBytes); }
  // Not at the ends, to which the advice does not apply.
  const void* middle() const { return data + kBytes / 2; }
};

// Whether the kernel was asked, with this advice, for all whole huge pages of `memory`.
bool asked(const Mapping& memory, int advice) {
  constexpr uintptr_t kPage = 2u << 20;
  const auto at = reinterpret_cast<uintptr_t>(memory.data);
  const uintptr_t begin = (at + kPage - 1) / kPage * kPage,
                  end = (at + Mapping::kBytes) / kPage * kPage;
  return last.at == reinterpret_cast<const void*>(begin) && last.length == end - begin &&
         last.advice == advice;
}

TEST(HugePages, AreAskedForWhatIsTouchedLater) {
  Mapping memory;
  last = {};
  advise_huge({memory.data, Mapping::kBytes});
  EXPECT_EQ(asked(memory, MADV_HUGEPAGE), !switched_off());
  EXPECT_EQ(Smaps(memory.middle()).advised, !switched_off());
}

TEST(HugePages, ContentsStayWhenPagesAreReplaced) {
  Mapping memory;
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  for (size_t i = 0; i < Mapping::kBytes; i++) memory.data[i] = static_cast<std::byte>(i * 31 >> 3);
  EXPECT_EQ(Smaps(memory.middle()).huge_bytes, 0u);
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
  last = {};
  collapse_huge({memory.data, Mapping::kBytes});
  EXPECT_EQ(asked(memory, MADV_COLLAPSE), !switched_off());
  // The kernel refuses before Linux 6.1, and where free memory is in pieces.
  if (last.done) {
    EXPECT_GE(Smaps(memory.middle()).huge_bytes, Mapping::kBytes / 2);
  }
  for (size_t i = 0; i < Mapping::kBytes; i++) {
    ASSERT_EQ(memory.data[i], static_cast<std::byte>(i * 31 >> 3)) << i;
  }
}

TEST(HugePages, ShortAndOddRangesAreLeftAlone) {
  std::byte small[64];
  advise_huge({small, sizeof small});
  collapse_huge({small, sizeof small});
  advise_huge({});
  collapse_huge({});
  Mapping memory;
  std::memset(memory.data, 1, 8192);
  advise_huge({memory.data + 1, kHugeRange - 1});
  for (size_t at = 0; at < kHugeRange; at += kHugeRange / 8) {
    ASSERT_FALSE(Smaps(memory.data + at).advised) << at;
  }
}

}  // namespace
}  // namespace mcast
