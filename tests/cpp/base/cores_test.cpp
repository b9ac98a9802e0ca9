// Cores of an affinity mask and of a cgroup's quota, and ranks of the launcher.
#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/temporary_folder.h"

namespace mcast::test {
namespace {

void write(const std::string& folder, const std::string& text) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/cpu.max") << text;
}

TEST(Cores, QuotaOfACgroupIsInWholeCpusAndThatOfItsAncestorsCounts) {
  const TemporaryFolder folder;
  const std::string root = folder.path();
  EXPECT_EQ(cores_of_cgroup(root, ""), UINT32_MAX) << "no file";
  EXPECT_EQ(cores_of_cgroup(root, "/job/rank"), UINT32_MAX);
  const struct {
    const char* text;
    uint32_t cores;
  } rows[] = {{"max 100000\n", UINT32_MAX}, {"200000 100000\n", 2}, {"250000 100000\n", 2},
              {"50000 100000\n", 1},        {"400000 50000\n", 8},  {"", UINT32_MAX},
              {"100000 0\n", UINT32_MAX}};
  for (const auto& row : rows) {
    write(root + "/job/rank", row.text);
    EXPECT_EQ(cores_of_cgroup(root, "/job/rank"), row.cores) << row.text;
    EXPECT_EQ(cores_of_cgroup(root, "/job/rank/below"), row.cores) << row.text;
    EXPECT_EQ(cores_of_cgroup(root, "/job"), UINT32_MAX) << row.text;
  }
  write(root + "/job/rank", "800000 100000\n");
  write(root + "/job", "300000 100000\n");
  EXPECT_EQ(cores_of_cgroup(root, "/job/rank"), 3u);
  write(root, "100000 100000\n");
  EXPECT_EQ(cores_of_cgroup(root, "/job/rank"), 1u);
  EXPECT_EQ(cores_of_cgroup(root, "/"), 1u);
}

TEST(Cores, AffinityBoundsThem) {
  const uint32_t before = usable_cores();
  EXPECT_GE(before, 1u);
  EXPECT_LE(before, std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t all, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1u);
  ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(usable_cores(), before);
}

TEST(Cores, RanksAreTheLaunchers) {
  const char* const set = std::getenv("LOCAL_WORLD_SIZE");
  const std::string kept = set != nullptr ? set : "";
  ::unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(launched_ranks(), 1u);
  const struct {
    const char* text;
    uint32_t ranks;
  } rows[] = {{"8", 8}, {"1", 1}, {"0", 1}, {"", 1}, {"many", 1}};
  for (const auto& row : rows) {
    ::setenv("LOCAL_WORLD_SIZE", row.text, 1);
    EXPECT_EQ(launched_ranks(), row.ranks) << row.text;
  }
  ::unsetenv("LOCAL_WORLD_SIZE");
  if (set != nullptr) ::setenv("LOCAL_WORLD_SIZE", kept.c_str(), 1);
}

}  // namespace
}  // namespace mcast::test
