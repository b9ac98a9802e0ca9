// The host's identity from given files, and the salt of a job from its environment.
#include "base/host.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace mcast {
namespace {

class HostFiles : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mcast_host_test_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    write("boot", "0f1e2d3c-boot\n");
    write("other_boot", "another-boot\n");
    write("empty", "");
    write("net", "");
    write("other_net", "");
  }
  void TearDown() override {
    for (const char* file : {"boot", "other_boot", "empty", "net", "other_net"}) {
      std::remove(path(file).c_str());
    }
    ::rmdir(folder_.c_str());
  }
  std::string path(const std::string& file) const { return folder_ + "/" + file; }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(path(file)) << text;
  }
  std::string id(const std::string& boot, const std::string& net) const {
    return host_id_from(path(boot).c_str(), path(net).c_str());
  }
  std::string folder_;
};

TEST_F(HostFiles, BothPartsCount) {
  struct stat info {};
  ASSERT_EQ(::stat(path("net").c_str(), &info), 0);
  EXPECT_EQ(id("boot", "net"),
            "0f1e2d3c-boot/" + std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino));
  EXPECT_EQ(id("boot", "net"), id("boot", "net"));
  EXPECT_NE(id("boot", "net"), id("other_boot", "net"));
  EXPECT_NE(id("boot", "net"), id("boot", "other_net"));
}

TEST_F(HostFiles, AMissingPartGivesNone) {
  EXPECT_EQ(id("missing", "net"), "");
  EXPECT_EQ(id("empty", "net"), "");
  EXPECT_EQ(id("boot", "missing"), "");
}

TEST(Host, AForkedChildIsOnTheSameHost) {
  const std::string mine = host_id();
  EXPECT_FALSE(mine.empty());
  EXPECT_EQ(mine, host_id());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(host_id() == mine ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  // If /proc does not give the identity, a child counts as another host.
  EXPECT_EQ(WEXITSTATUS(status), host_known(mine) ? 0 : 1);
}

TEST(Host, HasAName) { EXPECT_FALSE(host_name().empty()); }

TEST(Host, TheSaltFollowsTheEnvironment) {
  for (const char* name : {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  EXPECT_EQ(job_salt(), "");
  ::setenv("MASTER_ADDR", "10.0.0.1", 1);
  EXPECT_EQ(job_salt(), "|10.0.0.1|");
  ::setenv("MASTER_PORT", "29500", 1);
  EXPECT_EQ(job_salt(), "|10.0.0.1|29500");
  ::setenv("TORCHELASTIC_RUN_ID", "run7", 1);
  EXPECT_EQ(job_salt(), "run7|10.0.0.1|29500");
  for (const char* name : {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
}

}  // namespace
}  // namespace mcast
