// Finds the most refused sources in fixed memory, and how they are reported.
#include "base/source_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/monitor.h"

namespace mcast {
namespace {

constexpr uint32_t kLoud = 0x0a010009;  // 10.1.0.9

Source from(uint32_t address, uint16_t port) { return Source{{IpAddress::v4(address), port}}; }

TEST(SourceTable, CountsBySourceAndCause) {
  SourceTable table(7);
  for (int i = 0; i < 5; i++) table.note(from(kLoud, 100), Cause::foreign);
  table.note(from(kLoud, 200), Cause::damaged);
  table.note(from(kLoud + 1, 1), Cause::foreign);
  const auto top = table.top(10);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].source.address, IpAddress::v4(kLoud));
  EXPECT_EQ(top[0].source.port, 200) << "of the last message";
  EXPECT_EQ(top[0].total, 6u);
  EXPECT_EQ(top[0].count(Cause::foreign), 5u);
  EXPECT_EQ(top[0].count(Cause::damaged), 1u);
  EXPECT_EQ(top[1].total, 1u);
  EXPECT_EQ(table.top(1).size(), 1u);
}

// A hundred thousand spoofed addresses replace each other, but not the address that really sends.
TEST(SourceTable, ManySpoofedAddressesDoNotHideTheLoudOne) {
  SourceTable table(11);
  uint64_t loud = 0;
  for (uint32_t i = 0; i < 100000; i++) {
    table.note(from(0xc0000000 + i, 1), Cause::foreign);
    if (i % 20 == 0) {
      table.note(from(kLoud, 1), Cause::malformed);
      loud++;
    }
  }
  const auto top = table.top(SourceTable::kPlaces);
  ASSERT_LE(top.size(), SourceTable::kPlaces);
  const auto row = std::find_if(top.begin(), top.end(), [](const auto& r) {
    return r.source.address == IpAddress::v4(kLoud);
  });
  ASSERT_NE(row, top.end());
  EXPECT_GE(row->total, loud) << "a number is never too small";
  EXPECT_LE(row->total - row->inherited, loud);
}

TEST(SourceTable, APlaceThatIsTakenOverTellsHowMuchItInherits) {
  SourceTable table(3);
  // There are more sources than places, so some have replaced others.
  for (uint32_t i = 0; i < 2 * SourceTable::kPlaces; i++) {
    table.note(from(i + 1, 1), Cause::foreign);
  }
  uint64_t inherited = 0, total = 0;
  for (const auto& row : table.top(SourceTable::kPlaces)) {
    inherited += row.inherited;
    total += row.total;
    EXPECT_EQ(row.count(Cause::foreign), row.total - row.inherited);
  }
  EXPECT_GT(inherited, 0u);
  EXPECT_EQ(total, 2 * SourceTable::kPlaces) << "nothing is lost of the sum";
}

std::vector<std::string>* g_lines = nullptr;

class MonitorTest : public ::testing::Test {
 protected:
  MonitorTest() {
    g_lines = &lines_;
    set_log_sink([](int level, const char* line) {
      if (level == static_cast<int>(LogLevel::kWarn)) g_lines->emplace_back(line);
    });
  }
  ~MonitorTest() override { set_log_sink(nullptr); }
  size_t with(const std::string& text) const {
    return static_cast<size_t>(std::count_if(
        lines_.begin(), lines_.end(),
        [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  std::vector<std::string> lines_;
};

TEST_F(MonitorTest, WithoutSourcesOnlyCauses) {
  Monitor monitor;
  monitor.note(Cause::foreign, from(kLoud, 1), 0);
  monitor.note(Cause::hello_refused, from(kLoud, 1), 0);
  EXPECT_EQ(monitor.count(Cause::foreign), 1u);
  EXPECT_EQ(monitor.count(Cause::hello_refused), 1u);
  EXPECT_FALSE(monitor.watches());
  EXPECT_TRUE(monitor.top(10).empty());
  EXPECT_TRUE(lines_.empty());
}

TEST_F(MonitorTest, TellsTheFirstOfACauseAtOnceAndLaterOnesByTheMinute) {
  Monitor monitor;
  monitor.watch_sources(1);
  for (int i = 0; i < 100; i++) monitor.note(Cause::damaged, from(kLoud, 7), i * kMilli);
  EXPECT_EQ(lines_.size(), 1u);
  EXPECT_EQ(
      with("10.1.0.9:7 sends damaged datagrams or frames (CRC-32C) (damaged: first seen now)"), 1u)
      << lines_[0];
  monitor.note(Cause::foreign, from(kLoud, 7), kSecond);
  EXPECT_EQ(lines_.size(), 2u) << "another cause";
  monitor.note(Cause::damaged, from(kLoud, 8), 61 * kSecond);
  EXPECT_EQ(with("damaged: 100 in 61 s"), 1u) << lines_.back();
}

TEST_F(MonitorTest, AtMostSixLinesAMinute) {
  Monitor monitor;
  monitor.watch_sources(1);
  for (uint32_t i = 0; i < 1000; i++) monitor.note(Cause::foreign, from(i + 1, 1), i * kMilli);
  EXPECT_EQ(lines_.size(), Monitor::kLines);
  EXPECT_EQ(monitor.untold(), 1000 - Monitor::kLines);
  monitor.note(Cause::foreign, from(0xffff0000, 1), Monitor::kRepeat + kMilli);
  EXPECT_EQ(lines_.size(), Monitor::kLines + 1);
}

TEST_F(MonitorTest, AStormIsOneEventPerSecond) {
  Monitor monitor;
  monitor.watch_sources(1);
  for (uint64_t i = 0; i < 3 * Monitor::kStorm; i++)
    monitor.note(Cause::foreign, from(kLoud, 1), 5);
  EXPECT_EQ(monitor.count(Cause::storm), 1u);
  EXPECT_EQ(with("10.1.0.9:1 sends a storm of messages that are refused"), 1u);
  for (uint64_t i = 0; i < Monitor::kStorm; i++) {
    monitor.note(Cause::foreign, from(kLoud, 1), 2 * kSecond);
  }
  EXPECT_EQ(monitor.count(Cause::storm), 2u);
}

}  // namespace
}  // namespace mcast
