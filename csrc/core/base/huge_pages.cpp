// MADV_HUGEPAGE is repeated at every use, since a tensor that was freed and allocated again is
// another mapping at the same address.
#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <string>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace mcast {
namespace {

constexpr uintptr_t kPage = 2u << 20;

bool allowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  return std::getline(file, text) && text.find("[never]") == std::string::npos;
}

void advise(ConstBytes range, int advice) {
  static const bool allowed_here = allowed();
  if (range.size() < kHugeRange || !allowed_here) return;
  const auto at = reinterpret_cast<uintptr_t>(range.data());
  const uintptr_t begin = (at + kPage - 1) / kPage * kPage,
                  end = (at + range.size()) / kPage * kPage;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void advise_huge(ConstBytes range) { advise(range, MADV_HUGEPAGE); }

void collapse_huge(ConstBytes range) { advise(range, MADV_COLLAPSE); }

}  // namespace mcast
