// Guarded groups that a host engine runs: the engine has the secret, the ranks have none. If a rank
// requests something that the engine does not serve, all ranks name it, or it continues without the
// engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "crypto/secret.h"
#include "engine_process.h"
#include "host_engine/client/client_link.h"
#include "support/errors.h"
#include "support/ranks/programs.h"
#include "support/secret_text.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Settings = std::map<std::string, std::string>;

class GuardedEngine : public testing::Test {
 protected:
  void SetUp() override {
    for (const char digit : {'a', 'b'}) {
      std::ofstream(secret_file(digit)) << test::secret_text(digit) << "\n";
      ASSERT_EQ(::chmod(secret_file(digit).c_str(), 0600), 0);
    }
  }
  std::string secret_file(char digit) const { return folder_.path() + "/" + digit; }
  // Options of an engine with this secret (0: none) that serves these modes (none: the default).
  service::HostEngineOptions with(char digit, std::vector<std::string> modes = {}) const {
    service::HostEngineOptions options;
    options.guardian = false;
    options.goodbye = 0;
    options.security = {digit == 0 ? "" : secret_file(digit), std::move(modes)};
    return options;
  }
  Settings in_process(const std::string& mode, char digit) const {
    return {{"security", mode}, {"secret_file", secret_file(digit)}, {"job", "tests"}};
  }
  static Settings by(const EngineProcess& engine, const std::string& mode) {
    return {{"engine", engine.setting()}, {"security", mode}, {"job", "tests"}};
  }
  using Check = std::function<void(Member rank, const Status& status)>;
  // Ranks with these settings fail soon; `check` gets their errors.
  static void refused(const std::vector<Settings>& settings, const Check& check);
  // As above; rank r's error contains texts[r].
  static void refused(const std::vector<Settings>& settings, const std::vector<std::string>& texts);

  const TemporaryFolder folder_;
};

// A store with a scope that does not depend on the test, like torch's, which has an incarnation.
class ScopedStore final : public KeyValueStore {
 public:
  explicit ScopedStore(KeyValueStore& store) : store_(store) {}
  Status set(const std::string& key, const std::string& value) override {
    return store_.set(key, value);
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    return store_.multi_get(keys, timeout);
  }
  Result<std::string> scope() override { return std::string("mcast/7/"); }

 private:
  KeyValueStore& store_;
};

void GuardedEngine::refused(const std::vector<Settings>& settings, const Check& check) {
  const auto ranks = static_cast<uint32_t>(settings.size());
  expect_all_good(run_ranks(ranks, 60, [&](Member rank, DirectoryStore& store) {
    const auto spec = group_spec("refused", rank, ranks, settings[rank]);
    if (!spec) return false;
    const auto made = Engine::instance().create_group(*spec, store);
    EXPECT_FALSE(made.ok()) << rank;
    check(rank, made.status());
    return !made.ok();
  }));
}

void GuardedEngine::refused(const std::vector<Settings>& settings,
                            const std::vector<std::string>& texts) {
  refused(settings, [&](Member rank, const Status& status) {
    EXPECT_THAT(status.message(), HasSubstr(texts[rank])) << rank;
  });
}

bool runs_in_engine(const Group& group) {
  return group.stats().transport_reason.rfind("engine of this host", 0) == 0;
}

bool all_here(DirectoryStore& store, Member rank, uint32_t ranks) {
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < ranks; r++) keys.push_back("over" + std::to_string(r));
  return store.set(keys[rank], "").ok() && store.multi_get(keys, 30 * kSecond).ok();
}

void expect_guarded(const Group& group, const std::string& mode) {
  const SecurityStats told = group.stats().security;
  EXPECT_EQ(told.mode, mode);
  EXPECT_EQ(told.suite.empty(), mode == "off");
  EXPECT_EQ(told.sealed > 0, mode != "off");
  EXPECT_EQ(told.opened > 0, mode != "off");
  EXPECT_EQ(told.sources_watched, mode != "off");
  EXPECT_FALSE(told.trust_store);
}

// trust_store does not circumvent the engine's secret.
TEST_F(GuardedEngine, GroupsOfThreeModesRunAtOneEngine) {
  EngineProcess engine(with('a', {"off", "auth", "sealed"}));
  for (const std::string mode : {"off", "auth", "sealed"}) {
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      ScopedStore scoped(store);
      Settings settings = by(engine, mode);
      settings["trust_store"] = "1";
      auto group = make_group("g", rank, 2, scoped, settings);
      if (!group || !runs_in_engine(*group)) return false;
      for (const size_t block : {size_t{1}, size_t{5000}, size_t{300'001}}) {
        if (!work(*group, block, 2)) return false;
      }
      if (!reduce_all_ways(*group, 30'001, 2)) return false;
      expect_guarded(*group, mode);
      return all_here(store, rank, 2);
    }));
  }
}

// One rank has the same secret itself; the MACs of all ranks cover the same scope.
TEST_F(GuardedEngine, RanksInProcessHaveTheSameKeys) {
  EngineProcess engine(with('a'));
  for (const Member alone : {Member{0}, Member{2}}) {
    expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      ScopedStore scoped(store);
      auto group = make_group("mixed", rank, 3, scoped,
                              rank == alone ? in_process("sealed", 'a') : by(engine, "sealed"));
      if (!group || !work(*group, 50'000, 2) || !reduce_all_ways(*group, 20'000, 1)) return false;
      EXPECT_EQ(runs_in_engine(*group), rank != alone);
      expect_guarded(*group, "sealed");
      return all_here(store, rank, 3);
    }));
  }
}

TEST_F(GuardedEngine, RanksOfOneHostShareMemoryInIt) {
  EngineProcess engine(with('a'));
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    Settings settings = by(engine, "sealed");
    settings["shared_memory"] = "auto";
    auto group = make_group("near", rank, 2, store, settings);
    if (!group || !work(*group, 700'001, 2)) return false;
    EXPECT_EQ(group->stats().path, "shared memory");
    EXPECT_EQ(group->stats().security.mode, "sealed");
    return all_here(store, rank, 2);
  }));
}

TEST_F(GuardedEngine, AnEngineWithoutASecretIsNamedByAll) {
  EngineProcess engine(with(0));
  refused({in_process("sealed", 'a'), by(engine, "sealed")},
          {"rank 1 cannot guard its traffic: engine of this host (process ",
           "has no secret and serves security=off only, this group has security=sealed"});
}

TEST_F(GuardedEngine, ARankWithoutSecurityIsNamedWhereTheEngineGuards) {
  EngineProcess engine(with('a'));
  const std::string why = "serves security=auth,sealed, this group has security=off";
  refused({{{"security", "off"}}, by(engine, "off")},
          {"rank 1 cannot take part: engine of this host (process ", why});
  refused({by(engine, "off"), {{"security", "off"}}},
          {why, "rank 0 cannot take part: engine of this host (process "});
}

TEST_F(GuardedEngine, AnotherModeThanTheEnginesIsNamedByAll) {
  EngineProcess engine(with('a', {"auth"}));
  refused({by(engine, "sealed"), in_process("sealed", 'a')},
          {"serves security=auth, this group has security=sealed", "serves security=auth"});
  const std::string modes[] = {"auth", "sealed"};
  refused({by(engine, modes[0]), in_process(modes[1], 'a')},
          [&](Member rank, const Status& status) {
            const Member other = 1 - rank;
            EXPECT_TRUE(is_error(status, ErrorId::security_differs,
                                 {{"rank", std::to_string(other)},
                                  {"security", modes[other]},
                                  {"other", std::to_string(rank)},
                                  {"other_security", modes[rank]}}));
          });
}

TEST_F(GuardedEngine, AnotherSecretIsNamedByAll) {
  EngineProcess ours(with('a')), theirs(with('b'));
  refused({by(ours, "sealed"), by(theirs, "sealed"), in_process("sealed", 'a')},
          [](Member rank, const Status& status) {
            EXPECT_TRUE(is_error(status, ErrorId::secret_differs,
                                 rank == 1 ? Fields{{"other", "1"}} : Fields{{"rank", "1"}}));
          });
}

// First an engine without a secret, then one with another secret, then one with the ranks' own.
TEST_F(GuardedEngine, AutoGoesOnInItsProcessWhereTheEngineDoesNotServe) {
  EngineProcess none(with(0)), other(with('b')), same(with('a'));
  const std::vector<std::pair<const EngineProcess*, bool>> cases{
      {&none, false}, {&other, false}, {&same, true}};
  for (const std::pair<const EngineProcess*, bool>& one : cases) {
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      Settings settings = in_process("sealed", 'a');
      settings["engine"] = "auto:" + one.first->path();
      auto group = make_group("auto", rank, 2, store, settings);
      if (!group || !work(*group, 50'000, 1)) return false;
      EXPECT_EQ(runs_in_engine(*group), one.second);
      expect_guarded(*group, "sealed");
      return all_here(store, rank, 2);
    }));
  }
}

// MCAST_SECRET is only there for the first group, and applies to all.
TEST_F(GuardedEngine, UnderAutoEveryGroupUsesTheSecretOfTheEnvironment) {
  EngineProcess other(with('b'));
  for (const std::string trusts : {"0", "1"}) {
    expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
      ::setenv(crypto::kSecretVariable, secret_text('a').c_str(), 1);
      const Settings settings{{"security", "sealed"},
                              {"engine", "auto:" + other.path()},
                              {"trust_store", trusts},
                              {"job", "tests"}};
      std::vector<std::shared_ptr<Group>> groups;
      for (const char* name : {"first", "second"}) {
        DirectoryStore own = store.scoped(name);
        groups.push_back(make_group(name, rank, 2, own, settings));
        if (!groups.back() || !work(*groups.back(), 50'000, 1)) return false;
        EXPECT_FALSE(runs_in_engine(*groups.back())) << name;
        expect_guarded(*groups.back(), "sealed");
      }
      return all_here(store, rank, 2);
    }));
  }
}

// Ranks without an engine use the store's secret too, and an engine's is a different one.
TEST_F(GuardedEngine, UnderAutoASecretOfTheStoreStaysInTheProcesses) {
  EngineProcess guards(with('a'));
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    Settings settings{{"security", "sealed"}, {"trust_store", "1"}, {"job", "tests"}};
    if (rank == 0) settings["engine"] = "auto:" + guards.path();
    auto group = make_group("auto", rank, 2, store, settings);
    if (!group || !work(*group, 50'000, 1)) return false;
    EXPECT_FALSE(runs_in_engine(*group));
    EXPECT_TRUE(group->stats().security.trust_store);
    return all_here(store, rank, 2);
  }));
}

// A correct client checks these rules first; a hostile one sends the request anyway.
TEST_F(GuardedEngine, AClientChoosesNeitherModeNorSecret) {
  EngineProcess none(with(0)), guards(with('a'));
  const auto asked = [&](const EngineProcess& engine, const Settings& settings) {
    auto link = ClientLink::connect(engine.path(), 5 * kSecond);
    if (!link.ok()) return link.status().message();
    const auto spec = group_spec("x", 0, 2, settings);
    const TemporaryFolder folder;
    DirectoryStore store(folder.path());
    return (*link)->make_group(*spec, store).status().message();
  };
  Settings hostile = in_process("sealed", 'b');
  hostile["trust_store"] = "1";
  EXPECT_THAT(asked(none, hostile), HasSubstr("serves security=off, not security=sealed"));
  EXPECT_THAT(asked(guards, {{"security", "off"}}), HasSubstr("not security=off"));
}

// The modes and the secret are exactly those of the options, or the engine does not start.
TEST_F(GuardedEngine, AnEngineStartsWithTheSecretThatItsModesNeed) {
  ::unsetenv(crypto::kSecretVariable);
  const auto start = [](service::HostEngineOptions options) {
    const TemporaryFolder folder;
    options.path = folder.path() + "/engine.sock";
    const auto made = service::HostEngine::start(std::move(options));
    return made.ok() ? (*made)->status_text() : made.status().message();
  };
  EXPECT_THAT(start(with(0)), HasSubstr(R"("security":{"modes":["off"],"secret":false})"));
  const std::string guarded = start(with('a'));
  EXPECT_THAT(guarded, HasSubstr(R"("security":{"modes":["auth","sealed"],"secret":true})"));
  EXPECT_THAT(start(with(0, {"sealed"})), HasSubstr("option --security sealed needs a secret"));
  service::HostEngineOptions lost = with('a');
  lost.security.secret_file += "x";
  EXPECT_THAT(start(lost), HasSubstr("No such file"));
  EXPECT_THAT(start(with('a', {"off"})), HasSubstr(R"("modes":["off"],"secret":false)"));
}

}  // namespace
}  // namespace mcast::test
