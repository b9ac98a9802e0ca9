// Sockets at paths: which process may replace which, and which one removes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/local_socket.h"
#include "base/users.h"
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

TEST_F(LocalListeners, SocketWithoutAListenerIsReplaced) {
  const pid_t child = fork();
  if (child == 0) {
    const auto left = LocalListener::open(path(), how_);
    _exit(left.ok() ? 0 : 1);  // as if killed: the file stays
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

TEST_F(LocalListeners, FailedOpenLeavesNothing) {
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

// Changes the user of this thread alone, until it is destroyed.
class AnotherUser {
 public:
  explicit AnotherUser(uid_t uid) { EXPECT_EQ(syscall(SYS_setresuid, -1, uid, -1), 0); }
  ~AnotherUser() { EXPECT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0); }
};

// Another user's process could pose as the engine: clients that connect give it their tensors, and
// in guarded groups the right to act for its host.
TEST_F(LocalListeners, AnotherUsersProcessIsNotTakenForTheEngine) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  constexpr uid_t kOther = 65534;
  ASSERT_EQ(chmod(folder_.path().c_str(), 0777), 0);
  Result<LocalListener> other = [&] {
    const AnotherUser now(kOther);
    return LocalListener::open(path(), how_);
  }();
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  const auto refused = connect_to(path(), SOCK_SEQPACKET);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              testing::HasSubstr(user_text(kOther) + " listens at " + path() + ", expected root, " +
                                 user_text(0) + " as this process, or " + user_text(0) +
                                 ", who owns the folder: it may pose"));
  {
    const AnotherUser now(kOther);
    EXPECT_TRUE(connect_to(path(), SOCK_SEQPACKET).ok()) << "its own";
  }
  const auto named = TrustedUser::named(std::to_string(kOther));
  ASSERT_TRUE(named.ok());
  EXPECT_TRUE(connect_to(path(), SOCK_SEQPACKET, *named).ok()) << "named";
  ASSERT_EQ(chown(folder_.path().c_str(), kOther, static_cast<gid_t>(-1)), 0);
  EXPECT_TRUE(connect_to(path(), SOCK_SEQPACKET).ok()) << "the folder's owner's";
}

// Only the named user is trusted, not this process's user, the folder's owner or root.
TEST_F(LocalListeners, OnlyTheNamedUserIsTrusted) {
  const auto listener = LocalListener::open(path(), how_);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  const uid_t own = geteuid();
  const auto right = TrustedUser::named(std::to_string(own));
  ASSERT_TRUE(right.ok());
  EXPECT_TRUE(connect_to(path(), SOCK_SEQPACKET, *right).ok());
  const auto wrong = TrustedUser::named(std::to_string(own + 7));
  ASSERT_TRUE(wrong.ok());
  const auto refused = connect_to(path(), SOCK_SEQPACKET, *wrong);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              testing::HasSubstr(user_text(own) + " listens at " + path() +
                                 ", the setting engine_user (MCAST_ENGINE_USER) expects " +
                                 user_text(own + 7) + ": it may pose as the engine"));
  const auto unknown = TrustedUser::named("no-such-user");
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(),
              testing::HasSubstr("setting engine_user (MCAST_ENGINE_USER): this host has no user "
                                 "\"no-such-user\""));
}

TEST(Users, AreFoundByNameAndByNumber) {
  EXPECT_EQ(find_user("root"), 0u);
  EXPECT_EQ(find_user("0"), 0u);
  EXPECT_EQ(find_user("4294967294"), 4294967294u) << "nobody need have it";
  for (const char* none : {"", "4294967295", "4294967296", "-1", "1x", " 1", "no-such-user"}) {
    EXPECT_EQ(find_user(none), std::nullopt) << none;
  }
  EXPECT_EQ(user_text(0), "user 0 (root)");
  EXPECT_EQ(user_text(4294967294u), "user 4294967294");
}

}  // namespace
}  // namespace mcast
