// A host engine connects only to the addresses that its owner allows, whatever its clients request.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine_process.h"
#include "runtime/rendezvous.h"
#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

// The store of a hostile job, whose rank publishes a wrong address.
class Misplaced final : public KeyValueStore {
 public:
  Misplaced(KeyValueStore& store, std::string host) : store_(store), host_(std::move(host)) {}
  Status set(const std::string& key, const std::string& value) override {
    auto record = RankRecord::decode(value);
    if (!record.ok()) return store_.set(key, value);
    record->external.host = record->loopback.host = host_;
    return store_.set(key, record->encode());
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    return store_.multi_get(keys, timeout);
  }

 private:
  KeyValueStore& store_;
  const std::string host_;
};

TEST(EngineReach, MembersElsewhereAreNotGoneTo) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto spec =
        group_spec("far", rank, 2, {{"engine", engine.setting()}, {"shared_memory", "off"}});
    if (!spec) return false;
    spec->timeout = rank == 0 ? 30 * kSecond : kSecond;
    Misplaced misplaced(store, "240.0.0.7");
    KeyValueStore& own = rank == 1 ? static_cast<KeyValueStore&>(misplaced) : store;
    const auto made = Engine::instance().create_group(*spec, own);
    EXPECT_FALSE(made.ok());
    if (rank == 1) return true;
    EXPECT_THAT(made.status().message(),
                HasSubstr("rank 1: the engine does not connect to 240.0.0.7:"));
    return made.status().code() == Code::kInvalidArgument;
  }));
}

}  // namespace
}  // namespace mcast::test
