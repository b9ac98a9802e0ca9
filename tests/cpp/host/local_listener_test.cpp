// Sockets at paths: who may take whose place, and who removes what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "host/local_socket.h"
#include "support/temporary_folder.h"

namespace mcast {
namespace {

using File = LocalListener::File;

class LocalListeners : public testing::Test {
 protected:
  LocalListeners() {
    how_.type = SOCK_SEQPACKET;
    how_.mode = 0640;
    how_.who = "service";
  }

  size_t files() const {
    const std::filesystem::directory_iterator all(folder_.path());
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

  test::TemporaryFolder folder_;
  std::string path() const { return folder_.path() + "/a.sock"; }
  LocalListener::How how_;
};

TEST_F(LocalListeners, OneAtAPathUnlessItIsReplaced) {
  auto first = LocalListener::open(path(), how_);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  struct stat file {};
  ASSERT_EQ(stat(path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0640u);
  EXPECT_EQ(first->file(), File::kOwn);
  const auto refused = LocalListener::open(path(), how_);
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("another service answers at"));
  const Fd waits = std::move(connect_to(path(), SOCK_SEQPACKET)).value();

  how_.replace = true;
  auto second = LocalListener::open(path(), how_);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(first->file(), File::kOther);
  EXPECT_EQ(second->file(), File::kOwn);
  const Fd accepted(accept4(first->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  EXPECT_TRUE(accepted.valid()) << "who waits there stays there";
  first->close();
  EXPECT_EQ(second->file(), File::kOwn) << "the first leaves it alone";
  EXPECT_TRUE(connect_to(path(), SOCK_SEQPACKET).ok());
  second->close();
  EXPECT_EQ(second->file(), File::kGone);
  EXPECT_EQ(files(), 0u);
}

TEST_F(LocalListeners, OneThatNobodyListensAtIsTaken) {
  const pid_t child = fork();
  if (child == 0) {
    const auto left = LocalListener::open(path(), how_);
    _exit(left.ok() ? 0 : 1);  // as if it were killed: the file stays
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(files(), 1u);
  auto next = LocalListener::open(path(), how_);
  ASSERT_TRUE(next.ok()) << next.status().to_string();
  EXPECT_EQ(next->file(), File::kOwn);
  *next = LocalListener();
  EXPECT_EQ(files(), 0u);
}

TEST_F(LocalListeners, AFileThatIsNoSocketStays) {
  std::ofstream(path()) << "precious";
  how_.replace = true;
  const auto made = LocalListener::open(path(), how_);
  EXPECT_THAT(made.status().message(), testing::HasSubstr("cannot listen at"));
  EXPECT_TRUE(std::filesystem::is_regular_file(path()));
  EXPECT_EQ(files(), 1u);
}

TEST_F(LocalListeners, WhatFailsLeavesNothing) {
  how_.backlog = 1;
  how_.group = 54321;
  const bool root = geteuid() == 0;
  const auto made = LocalListener::open(path(), how_);
  EXPECT_EQ(made.ok(), root) << "not a group of this process";
  EXPECT_EQ(files(), root ? 1u : 0u);
  struct stat file {};
  if (!root) return;
  ASSERT_EQ(stat(path().c_str(), &file), 0);
  EXPECT_EQ(file.st_gid, 54321u);
}

}  // namespace
}  // namespace mcast
