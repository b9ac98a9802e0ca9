// Status and Result return the values that they were given; names of codes and counters are unique.
#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <thread>

#include "base/counters.h"

namespace mcast {
namespace {

TEST(Status, OkIsEmpty) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_TRUE(static_cast<bool>(ok));
  EXPECT_EQ(ok.code(), Code::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(ok.to_string(), "ok");
  EXPECT_TRUE(ok.with_context("group 1").ok());
  EXPECT_TRUE(Status(Code::kOk, "ignored").ok());
}

TEST(Status, ErrorsKeepCodeAndMessage) {
  const Status lost(Code::kPeerLost, "rank 3 is silent");
  EXPECT_FALSE(lost.ok());
  EXPECT_EQ(lost.to_string(), "peer_lost: rank 3 is silent");
  const Status copy = lost.with_context("broadcast 7");
  EXPECT_EQ(copy.code(), Code::kPeerLost);
  EXPECT_EQ(copy.message(), "broadcast 7: rank 3 is silent");
  EXPECT_EQ(lost.message(), "rank 3 is silent");
}

TEST(Status, SystemErrorsAreClassified) {
  const Status missing = Status::system(ENOENT, "open x");
  EXPECT_EQ(missing.code(), Code::kSystem);
  EXPECT_EQ(missing.message(), "open x: No such file or directory");
  for (const int exhausted : {EMFILE, ENFILE, ENOMEM, ENOBUFS}) {
    EXPECT_EQ(Status::system(exhausted, "socket").code(), Code::kResourceExhausted) << exhausted;
  }
}

TEST(Status, CodeNamesAreUnique) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    EXPECT_TRUE(names.insert(code_name(static_cast<Code>(code))).second) << code;
  }
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Result, HoldsAValueOrAStatus) {
  Result<std::unique_ptr<int>> value(std::make_unique<int>(4));
  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(**value, 4);
  EXPECT_EQ(*std::move(value).value(), 4);
  const Result<int> none(Status(Code::kClosed, "gone"));
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kClosed);
}

TEST(Counters, NamesAreUniqueAndHelped) {
  std::set<std::string> names;
  for (size_t i = 0; i < kCounterCount; ++i) {
    const auto counter = static_cast<Counter>(i);
    EXPECT_TRUE(names.insert(counter_name(counter)).second) << i;
    EXPECT_GT(std::string(counter_help(counter)).size(), 5u) << i;
  }
  EXPECT_STREQ(counter_name(Counter::duplicates), "duplicates");
  EXPECT_STREQ(counter_name(Counter::probes_sent), "probes_sent");
}

TEST(Counters, AddAccumulatesOneCounterOnly) {
  Counters counters;
  counters.add(Counter::gaps);
  counters.add(Counter::gaps, 41);
  for (size_t i = 0; i < kCounterCount; ++i) {
    const auto counter = static_cast<Counter>(i);
    EXPECT_EQ(counters.get(counter), counter == Counter::gaps ? 42u : 0u);
  }
}

TEST(Counters, AReaderSeesValuesRise) {
  Counters counters;
  std::thread lane([&] {
    for (int i = 0; i < 20000; ++i) counters.add(Counter::chunks_placed);
  });
  uint64_t last = 0;
  do {
    const uint64_t now = counters.get(Counter::chunks_placed);
    EXPECT_GE(now, last);
    last = now;
  } while (last < 20000);
  lane.join();
}

}  // namespace
}  // namespace mcast
