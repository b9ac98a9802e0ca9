// The base is drawn once per program. Each share of the fresh seeds starts where the one before it
// ends.
#include "support/seeds.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

namespace mcast::test {
namespace {

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define MCAST_TEST_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(MCAST_TEST_TSAN)
constexpr uint64_t kUsualShare = 12;
#else
constexpr uint64_t kUsualShare = 100;
#endif

uint64_t number(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

uint64_t fresh_base() {
  static const uint64_t base = [] {
    if (!whole_run()) return uint64_t{1};
    std::random_device device;
    // Far above the fixed seeds, and short enough to type.
    const uint64_t drawn = number("MCAST_TEST_BASE", 1'000'000'000ull + device());
    std::printf("fresh seeds: MCAST_TEST_BASE=%llu\n", static_cast<unsigned long long>(drawn));
    std::fflush(stdout);
    return drawn;
  }();
  return base;
}

int note_file() {
  static const int file = [] {
    const char* const path = std::getenv("MCAST_TEST_NOTE");
    return path == nullptr ? -1 : ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  }();
  return file;
}

}  // namespace

bool replaying() { return std::getenv("MCAST_TEST_SEED") != nullptr; }

bool whole_run() {
  return number("MCAST_TEST_ALL", 0) == 1 || std::getenv("MCAST_TEST_BASE") != nullptr;
}

uint64_t seed_count(uint64_t all, uint64_t least) {
  const uint64_t usual = whole_run() ? kUsualShare : kUsualShare / 8;
  const uint64_t percent = number("MCAST_TEST_SEEDS", usual) * number("MCAST_TEST_SHARE", 100);
  return std::max(least, all * percent / 10'000);
}

void note_seed(uint64_t seed) {
  const int file = note_file();
  if (file < 0) return;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string text = "MCAST_TEST_SEED=" + std::to_string(seed) +
                           " --gtest_filter=" + test.test_suite_name() + "." + test.name() + "\n";
  // Truncated after the write, so that the file is never empty.
  if (::pwrite(file, text.data(), text.size(), 0) > 0) {
    (void)!::ftruncate(file, static_cast<off_t>(text.size()));
  }
}

void note_no_seed() {
  if (note_file() >= 0) (void)!::ftruncate(note_file(), 0);
}

Seeds seeds(uint64_t all, uint64_t share, uint64_t least) {
  if (replaying()) return Seeds({number("MCAST_TEST_SEED", 1)});
  const uint64_t count = seed_count(all, least);
  const uint64_t fixed = (count + 3) / 4;
  std::vector<uint64_t> out;
  out.reserve(count);
  for (uint64_t i = 0; i < fixed; i++) out.push_back(1 + share * fixed + i);
  for (uint64_t i = fixed; i < count; i++) out.push_back(fresh_base() + share * count + i);
  return Seeds(std::move(out));
}

void report_seed(uint64_t seed, const std::string& wrong) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  ADD_FAILURE() << "MCAST_TEST_SEED=" << seed << " --gtest_filter=" << test.test_suite_name() << "."
                << test.name() << ": " << wrong;
}

}  // namespace mcast::test
