// Compares the meters' rates of operations and trains with rates computed by hand.
#include "protocol/rate_meter.h"

#include <gtest/gtest.h>

namespace mcast {
namespace {

constexpr uint64_t kMega = 1'000'000;

// Runs this many operations of 1 MB, each of which takes `time`, with `gap` between them.
Nanos run(RateMeter& meter, int operations, Nanos time, Nanos gap, Nanos from = kSecond) {
  for (int i = 0; i < operations; i++, from += time + gap) meter.add(kMega, from, from + time);
  return from;
}

TEST(RateMeter, TimeBetweenOperationsDoesNotCount) {
  RateMeter meter;
  run(meter, 8, 100 * kMilli, 5 * kSecond);
  EXPECT_DOUBLE_EQ(meter.best(), 10e6);
  EXPECT_TRUE(meter.enough(800 * kMilli));
  EXPECT_FALSE(meter.enough(801 * kMilli));
}

TEST(RateMeter, BestRateIsThatOfTheFastestBatch) {
  RateMeter meter;
  Nanos at = run(meter, 4, kSecond, 0);
  at = run(meter, 4, 100 * kMilli, 0, at);
  run(meter, 4, kSecond, 0, at);
  EXPECT_DOUBLE_EQ(meter.best(), 10e6);
}

TEST(RateMeter, OperationsAtOnceShareTheirTime) {
  RateMeter meter;
  // Four at a time; all end within 400 ms of the start of the first one.
  for (int group = 0; group < 2; group++) {
    const Nanos from = kSecond * (group + 1);
    for (int i = 1; i <= 4; i++) meter.add(kMega, from, from + i * 100 * kMilli);
  }
  EXPECT_DOUBLE_EQ(meter.best(), 10e6);
}

TEST(RateMeter, FewOperationsAreNotEnoughHoweverLong) {
  RateMeter meter;
  EXPECT_EQ(meter.best(), 0);
  run(meter, 7, 10 * kSecond, 0);
  EXPECT_FALSE(meter.enough(kSecond));
}

TEST(TrainMeter, RateIsMeasuredOverTheSecondHalf) {
  TrainMeter meter(4 * kMega);
  Nanos at = kSecond;
  // A slow beginning, then 1 MB in 10 ms.
  for (int i = 0; i < 10; i++) meter.on_piece(kMega / 10, at += 100 * kMilli);
  for (int i = 0; i < 30; i++) meter.on_piece(kMega / 10, at += kMilli);
  EXPECT_DOUBLE_EQ(meter.rate(), 100e6);
  EXPECT_EQ(meter.got(), 4 * kMega);
}

TEST(TrainMeter, AShortTrainIsMeasuredFromItsFirstPiece) {
  TrainMeter meter(100 * kMega);
  for (int i = 0; i < 5; i++) meter.on_piece(kMega, kSecond + i * 100 * kMilli);
  EXPECT_DOUBLE_EQ(meter.rate(), 10e6);
}

TEST(TrainMeter, SimultaneousPiecesGiveAFiniteRate) {
  TrainMeter meter(4 * kMega);
  EXPECT_EQ(meter.rate(), 0);
  meter.on_piece(kMega, kSecond);
  EXPECT_EQ(meter.rate(), 0) << "one piece says nothing";
  for (int i = 0; i < 3; i++) meter.on_piece(kMega, kSecond);
  EXPECT_DOUBLE_EQ(meter.rate(), 2e6 / (static_cast<double>(TrainMeter::kLeastTime) / kSecond));
}

}  // namespace
}  // namespace mcast
