// The setting engine_user: a client gives its tensors only to a process of that user.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/log.h"
#include "base/users.h"
#include "engine_process.h"
#include "host_engine/server/drain_socket.h"
#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

std::string own_user() { return std::to_string(geteuid()); }
std::string other_user() { return std::to_string(geteuid() + 7); }

Status creation(const std::string& name, Member rank, DirectoryStore& store,
                const std::string& engine, const std::string& user) {
  DirectoryStore own = store.scoped(name);
  const auto spec = group_spec(name, rank, 2, {{"engine", engine}, {"engine_user", user}});
  if (!spec) return Status(Code::kInternal, "no such setting");
  const auto made = Engine::instance().create_group(*spec, own);
  if (!made.ok()) return made.status();
  return work(**made, 1000, 1) ? Status() : Status(Code::kInternal, "it does not work");
}

// An existing link is not used for another user's engine.
TEST(EngineUser, GroupsOfAnotherUsersEngineAreRefusedByName) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    EXPECT_TRUE(creation("own", rank, store, engine.setting(), own_user()).ok());
    const Status refused = creation("other", rank, store, engine.setting(), other_user());
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.to_string();
    EXPECT_THAT(refused.message(),
                HasSubstr("group 'other': engine of this host: " + user_text(geteuid()) +
                          " listens at " + engine.path() + ", the setting engine_user"));
    EXPECT_THAT(refused.message(), HasSubstr("expects " + user_text(geteuid() + 7)));
    EXPECT_TRUE(creation("any", rank, store, engine.setting(), "").ok());
    return !testing::Test::HasFailure();
  }));
}

// Its tensors stay in this process. It is a warning, since a person should look into it.
TEST(EngineUser, AutoTakesNoOtherUsersEngineAndWarns) {
  static std::atomic<int> warned{0};
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    set_log_sink([](int level, const char* line) {
      const bool told = std::string(line).find("it may pose as the engine") != std::string::npos;
      if (told && level == static_cast<int>(LogLevel::kWarn)) warned++;
    });
    const std::string setting = "auto:" + engine.path();
    EXPECT_TRUE(creation("first", rank, store, setting, other_user()).ok());
    EXPECT_TRUE(creation("second", rank, store, setting, other_user()).ok());
    EXPECT_EQ(warned, 1) << "once";
    set_log_sink(nullptr);
    return !testing::Test::HasFailure();
  }));
}

TEST(EngineUser, AnotherUsersEngineIsNotAskedToDrain) {
  EngineProcess engine;
  const auto other = TrustedUser::named(other_user());
  ASSERT_TRUE(other.ok());
  const auto refused = service::ask_to_drain(engine.path(), 0, *other);
  EXPECT_THAT(refused.status().message(), HasSubstr("it may pose as the engine"));
  EXPECT_FALSE(EngineProcess::has_ended(engine.pid()));
  const auto own = TrustedUser::named(own_user());
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(service::ask_to_drain(engine.path(), 0, *own).ok());
}

}  // namespace
}  // namespace mcast::test
