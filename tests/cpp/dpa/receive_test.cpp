// The receive kernel under the NIC model: random schedules, each rule by name, and the faults of
// the public code, each of which the same schedules must find.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "dpa/observed.h"
#include "dpa/public_faults.h"
#include "dpa/schedule.h"
#include "support/seeds.h"

namespace mcast::dpa {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

rig_kernel kernel_of(rig_flavour flavour) {
  return flavour == RIG_HEADER      ? dpa_observed_receive_header
         : flavour == RIG_IMMEDIATE ? dpa_observed_receive_immediate
                                    : dpa_observed_receive_placed;
}

// Without a ring, it behaves like the other kernels.
TEST(DpaForEngine, PlacesWhatHasCome) {
  const Schedule schedule{RIG_HEADER, dpa_observed_receive_for_engine, true, false};
  test::for_seeds(test::seeds(40, 3), [&](uint64_t seed) { return run_schedule(seed, schedule); });
}

class DpaSchedules : public ::testing::TestWithParam<rig_flavour> {};

TEST_P(DpaSchedules, PlaceWhatHasCome) {
  const Schedule schedule{GetParam(), kernel_of(GetParam()), false, false};
  test::for_seeds(test::seeds(80), [&](uint64_t seed) { return run_schedule(seed, schedule); });
}

TEST_P(DpaSchedules, SlicesRetire) {
  const Schedule schedule{GetParam(), kernel_of(GetParam()), true, false};
  test::for_seeds(test::seeds(80, 1), [&](uint64_t seed) { return run_schedule(seed, schedule); });
}

TEST_P(DpaSchedules, ErrorsEndTheWorker) {
  const Schedule schedule{GetParam(), kernel_of(GetParam()), true, true};
  test::for_seeds(test::seeds(80, 2), [&](uint64_t seed) { return run_schedule(seed, schedule); });
}

INSTANTIATE_TEST_SUITE_P(Flavours, DpaSchedules,
                         ::testing::Values(RIG_HEADER, RIG_IMMEDIATE, RIG_PLACED),
                         [](const auto& of) {
                           return of.param == RIG_HEADER      ? "Header"
                                  : of.param == RIG_IMMEDIATE ? "Immediate"
                                                              : "Placed";
                         });

// The distinct errors of schedules with this fault.
std::vector<std::string> findings(enum public_fault fault, bool failing = false) {
  ::public_fault = fault;
  const Schedule schedule{RIG_IMMEDIATE, public_receive, false, failing};
  std::vector<std::string> found;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    const std::string wrong = run_schedule(seed, schedule);
    if (!wrong.empty()) found.push_back(wrong);
  }
  ::public_fault = FAULT_NONE;
  return found;
}

TEST(DpaPublicFaults, WithoutThemNothingIsFound) {
  EXPECT_THAT(findings(FAULT_NONE), IsEmpty());
  EXPECT_THAT(findings(FAULT_NONE, true), IsEmpty());
}

TEST(DpaPublicFaults, ADuplicateIsCountedTwice) {
  const auto found = findings(FAULT_DUPLICATE_COUNTED);
  ASSERT_THAT(found, Not(IsEmpty()));
  EXPECT_THAT(found.front(), HasSubstr("counts "));
}

TEST(DpaPublicFaults, TheTailsLengthGoesToTheChunkThatComesLast) {
  EXPECT_THAT(findings(FAULT_SHORT_TAIL), Not(IsEmpty()));
}

TEST(DpaPublicFaults, AnErrorIsTakenForSuccess) {
  EXPECT_THAT(findings(FAULT_ERROR_IS_SUCCESS, true), Not(IsEmpty()));
}

TEST(DpaPublicFaults, ASlotIsPostedAgainBeforeItWasWrittenOut) {
  const auto found = findings(FAULT_EARLY_REPOST);
  ASSERT_THAT(found, Not(IsEmpty()));
  EXPECT_THAT(found.front(), HasSubstr("slot posted again before it was written out"));
}

TEST(DpaPublicFaults, TheLastWritesAreNeverSignalled) {
  EXPECT_THAT(findings(FAULT_NO_TAIL_SIGNAL), Not(IsEmpty()));
}

// One worker and one stream of 64-byte chunks, driven by hand.
class DpaWorker : public ::testing::Test {
 protected:
  void start(rig_flavour flavour, uint32_t log = 6) {
    rig_init(rig_.get(), flavour, log, kernel_of(flavour));
    observing_ = std::make_unique<Observing>(&rig_->nic);
    slot_ = rig_slot(rig_.get(), &stream_);
    rig_open(rig_.get(), slot_, &stream_);
  }
  bool arrive(uint32_t chunk, uint8_t with = 0) {
    const std::vector<uint8_t> payload(RIG_CHUNK, with != 0 ? with : static_cast<uint8_t>(chunk));
    return rig_arrive(rig_.get(), &stream_, chunk, payload.data()) != 0;
  }
  int poll() { return rig_->kernel(&rig_->worker); }
  // Runs until nothing changes.
  void settle() {
    for (int i = 0; i < 20; i++) {
      poll();
      nic_write(&rig_->nic, 1000);
    }
  }
  uint8_t byte(uint32_t chunk) { return rig_destination(rig_.get(), slot_)[chunk * 64]; }
  const dpa_counts& counts() { return rig_->slices[slot_].counts; }
  const dpa_progress& progress() { return rig_->worker.progress; }
  uint32_t posted() { return rig_->nic.rq_posted - rig_->nic.rq_consumed; }
  void TearDown() override {
    if (observing_ != nullptr) {
      EXPECT_STREQ(nullptr, rig_->nic.broken);
    }
  }

  rig_stream stream_{0xfeed, 5, 0xd00d, 3, 0, 9, 300, 64, 40, 0, 300};
  std::unique_ptr<rig> rig_{std::make_unique<rig>()};
  std::unique_ptr<Observing> observing_;
  uint32_t slot_ = 0;
};

TEST_F(DpaWorker, ABatchIsSixteen) {
  start(RIG_HEADER);
  for (uint32_t i = 0; i < 20; i++) arrive(i);
  EXPECT_EQ(16, poll());
  EXPECT_EQ(16u, rig_->nic.fetched) << "one doorbell, all of them";
  EXPECT_EQ(4, poll());
  EXPECT_EQ(0, poll());
  EXPECT_EQ(20u, counts().present);
}

TEST_F(DpaWorker, EverySixteenthWriteGivesSlotsBack) {
  start(RIG_HEADER);
  for (uint32_t i = 0; i < 24; i++) arrive(i);
  poll();
  poll();
  EXPECT_EQ(64u - 24, posted()) << "nothing is written yet";
  nic_write(&rig_->nic, 15);
  arrive(24);
  poll();
  EXPECT_EQ(64u - 25, posted()) << "the signalled one is not done";
  nic_write(&rig_->nic, 1);
  arrive(25);
  poll();
  EXPECT_EQ(64u - 26 + 16, posted());
  EXPECT_EQ(1u, rig_->nic.written.produced);
}

TEST_F(DpaWorker, AnIdleWorkerFlushesWhatIsNotSignalled) {
  start(RIG_HEADER);
  for (uint32_t i = 0; i < 3; i++) arrive(i);
  poll();
  EXPECT_EQ(3u, rig_->nic.fetched);
  poll();
  EXPECT_EQ(4u, rig_->nic.fetched) << "an empty entry";
  poll();
  EXPECT_EQ(4u, rig_->nic.fetched) << "once";
  nic_write(&rig_->nic, 10);
  poll();
  EXPECT_EQ(64u, posted());
  EXPECT_EQ(4u, progress().landed);
  EXPECT_EQ(4u, progress().horizon);
}

// Three unsignalled writes are pending, and then only datagrams of strangers arrive.
TEST_F(DpaWorker, AFloodOfStrangersDoesNotHoldSlots) {
  start(RIG_HEADER);
  for (uint32_t i = 0; i < 3; i++) arrive(i);
  poll();
  rig_stream other = stream_;
  other.tag++;
  const std::vector<uint8_t> payload(64, 1);
  for (uint32_t i = 0; i < 1000; i++) {
    ASSERT_TRUE(rig_arrive(rig_.get(), &other, i % 300, payload.data())) << "dropped at " << i;
    poll();
    nic_write(&rig_->nic, 10);
  }
  EXPECT_EQ(1000u, progress().foreign);
  EXPECT_EQ(3u, counts().present);
}

TEST_F(DpaWorker, ADuplicateIsNotCountedAndNotWritten) {
  start(RIG_HEADER);
  arrive(7, 0x71);
  arrive(7, 0x72);
  settle();
  EXPECT_EQ(1u, counts().present);
  EXPECT_EQ(1u, counts().duplicates);
  EXPECT_EQ(0x71, byte(7));
}

TEST_F(DpaWorker, TheTailIsShortAndTheLastToComeIsNot) {
  start(RIG_HEADER);
  arrive(299);
  arrive(4);
  settle();
  EXPECT_EQ(2u, counts().present);
  const uint8_t* const destination = rig_destination(rig_.get(), slot_);
  EXPECT_EQ(299 & 255, destination[299 * 64 + 39]);
  EXPECT_EQ(0xdd, destination[299 * 64 + 40]);
  EXPECT_EQ(4, destination[4 * 64 + 63]);
}

TEST_F(DpaWorker, ADatagramOfAnotherLengthIsAMisfit) {
  start(RIG_HEADER);
  rig_stream longer = stream_;
  longer.chunk_bytes = 65;
  const std::vector<uint8_t> payload(RIG_CHUNK, 1);
  rig_arrive(rig_.get(), &longer, 0, payload.data());
  longer.chunk_bytes = 40;  // the length of the tail, which this chunk is not
  rig_arrive(rig_.get(), &longer, 1, payload.data());
  settle();
  EXPECT_EQ(2u, counts().misfits);
  EXPECT_EQ(0u, counts().present);
}

// A datagram shorter than a header leaves the slot's earlier content in place.
TEST_F(DpaWorker, AShortDatagramDoesNotBorrowTheHeaderBeforeIt) {
  start(RIG_HEADER, 5);
  for (uint32_t i = 0; i < 32; i++) {
    uint8_t header[DPA_HEADER_BYTES];
    rig_header(header, &stream_, i);
    std::memcpy(rig_->staging + i * RIG_STRIDE + DPA_PAYLOAD_AT - DPA_HEADER_BYTES, header,
                sizeof header);
    nic_receive(&rig_->nic, DPA_CQE_SEND, 0, nullptr, header, 3);
  }
  settle();
  EXPECT_EQ(0u, counts().present);
}

TEST_F(DpaWorker, AnotherKindOfDatagramIsPassedOver) {
  start(RIG_HEADER);
  const std::vector<uint8_t> payload(64, 1);
  uint8_t header[DPA_HEADER_BYTES];
  rig_header(header, &stream_, 1);
  nic_receive(&rig_->nic, DPA_CQE_SEND_IMMEDIATE, 0, header, payload.data(), 64);
  arrive(2);
  settle();
  EXPECT_EQ(1u, progress().foreign);
  EXPECT_EQ(1u, counts().present);
  EXPECT_EQ(0u, progress().syndrome);
}

TEST_F(DpaWorker, ACompressedCompletionEndsIt) {
  start(RIG_HEADER);
  arrive(0);
  rig_->received[0].op_own |= 3 << DPA_CQE_FORMAT_SHIFT;
  EXPECT_EQ(DPA_FAILED, poll());
  EXPECT_EQ(DPA_FAILED, poll());
  EXPECT_EQ(0u, counts().present);
}

TEST_F(DpaWorker, AnErrorOfAReceiveSetsNoBit) {
  start(RIG_IMMEDIATE);
  arrive(0);
  rig_->nic.fail_receives = 1;
  arrive(1);
  arrive(2);
  EXPECT_EQ(DPA_FAILED, poll());
  EXPECT_EQ(1u, rig_->bitmaps[slot_][0]) << "what came before it is placed";
  EXPECT_EQ(0x10000u, progress().syndrome & 0x10000);
}

TEST_F(DpaWorker, AnErrorOfAWriteIsNoLanding) {
  start(RIG_IMMEDIATE);
  rig_->nic.fail_write = 3;
  for (uint32_t i = 0; i < 16; i++) arrive(i);
  poll();
  nic_write(&rig_->nic, 100);
  EXPECT_EQ(DPA_FAILED, poll());
  EXPECT_LT(progress().landed, 3u);
  EXPECT_NE(progress().landed, progress().horizon);
}

// A full loopback queue leaves completions where they are; its last entry is reserved for a flush.
TEST_F(DpaWorker, WaitsForRoomInTheLoopbackQueue) {
  start(RIG_HEADER);
  rig_->worker.sq.mask = rig_->nic.sq_mask = 31;
  for (uint32_t i = 0; i < 64; i++) ASSERT_TRUE(arrive(i));
  EXPECT_FALSE(arrive(64)) << "no receive is posted";
  int taken = 0;
  for (int i = 0; i < 10; i++) taken += poll();
  EXPECT_EQ(31, taken);
  EXPECT_EQ(32u, rig_->nic.fetched);
  settle();
  EXPECT_EQ(64u, counts().present);
  EXPECT_EQ(64u, posted());
}

TEST_F(DpaWorker, RetiresWhenItsWritesAreDone) {
  start(RIG_HEADER);
  for (uint32_t i = 0; i < 5; i++) arrive(i);
  poll();
  arrive(5);
  rig_close(rig_.get(), slot_);
  poll();
  EXPECT_EQ(5u, counts().present) << "nothing is placed after closing";
  for (int i = 0; i < 5; i++) poll();
  EXPECT_FALSE(rig_retired(rig_.get(), slot_)) << "five writes are on their way";
  nic_write(&rig_->nic, 5);
  poll();
  EXPECT_FALSE(rig_retired(rig_.get(), slot_)) << "nobody has said that they are done";
  nic_write(&rig_->nic, 1);
  poll();
  EXPECT_TRUE(rig_retired(rig_.get(), slot_));
  arrive(6);
  settle();
  EXPECT_EQ(5u, counts().present);
  EXPECT_EQ(2u, progress().foreign);
}

TEST_F(DpaWorker, ASliceThatWasNeverServedRetires) {
  start(RIG_HEADER);
  rig_close(rig_.get(), slot_);
  poll();
  EXPECT_TRUE(rig_retired(rig_.get(), slot_));
}

// The 8-bit task repeats: immediates cannot distinguish such operations, headers can.
TEST_F(DpaWorker, ImmediatesWrapAfter256Operations) {
  for (const rig_flavour flavour : {RIG_IMMEDIATE, RIG_HEADER}) {
    observing_.reset();
    start(flavour);
    rig_stream late = stream_;
    late.sequence -= 1;
    late.descriptor ^= 1;
    const std::vector<uint8_t> payload(64, 1);
    rig_arrive(rig_.get(), &late, 0, payload.data());
    settle();
    EXPECT_EQ(flavour == RIG_IMMEDIATE ? 1u : 0u, counts().present);
  }
}

// A datagram that belongs to no slice is passed on whole: header and payload, in the order of
// arrival.
class DpaHandsOn : public DpaWorker {
 protected:
  void start_for_engine() {
    start(RIG_HEADER);
    rig_->kernel = dpa_observed_receive_for_engine;
    rig_hand_on(rig_.get());
    other_ = stream_;
    other_.tag++;
  }
  bool arrive_other(uint32_t chunk, uint32_t bytes = 64) {
    std::vector<uint8_t> payload(bytes, static_cast<uint8_t>(chunk));
    uint8_t header[DPA_HEADER_BYTES];
    rig_header(header, &other_, chunk);
    return nic_receive(&rig_->nic, DPA_CQE_SEND, 0, header, payload.data(), bytes) != 0;
  }
  const dpa_rest& rest() const { return rig_->worker.rest; }
  // Checks an entry: the chunk in its header, and its last byte.
  void expect_entry(uint32_t entry, uint32_t chunk, uint32_t bytes = 64) {
    const uint8_t* const at = rig_->rest + entry * RIG_STRIDE;
    uint8_t header[DPA_HEADER_BYTES];
    rig_header(header, &other_, chunk);
    EXPECT_EQ(DPA_HEADER_BYTES + bytes, rig_->rest_bytes[entry]);
    EXPECT_EQ(0, std::memcmp(header, at, sizeof header)) << "entry " << entry;
    EXPECT_EQ(static_cast<uint8_t>(chunk), at[DPA_HEADER_BYTES + bytes - 1]) << "entry " << entry;
  }
  rig_stream other_{};
};

TEST_F(DpaHandsOn, OtherDatagramsArriveWholeAndInOrderAmongChunks) {
  start_for_engine();
  for (uint32_t i = 0; i < 10; i++) {
    arrive(i);
    arrive_other(i, 10 + i);
  }
  settle();
  EXPECT_EQ(10u, counts().present);
  EXPECT_EQ(10u, rest().written);
  EXPECT_EQ(0u, progress().foreign);
  for (uint32_t i = 0; i < 10; i++) expect_entry(i, i, 10 + i);
  EXPECT_EQ(static_cast<uint8_t>(9), byte(9));
  EXPECT_STREQ(nullptr, rig_->nic.broken);
}

// Entries are valid once their horizon has landed, like bits.
TEST_F(DpaHandsOn, EntriesLandAsBitsDo) {
  start_for_engine();
  arrive_other(7);
  poll();
  EXPECT_EQ(1u, rest().written);
  EXPECT_GE(static_cast<int32_t>(progress().horizon - progress().landed), 1);
  settle();
  EXPECT_EQ(progress().horizon, progress().landed);
  expect_entry(0, 7);
}

// A full ring drops further datagrams; chunks are placed meanwhile, and slots are posted again.
TEST_F(DpaHandsOn, DatagramsBeyondAFullRingAreDropped) {
  start_for_engine();
  for (uint32_t i = 0; i < RIG_REST + 5; i++) {
    arrive_other(i);
    settle();
  }
  EXPECT_EQ(static_cast<uint32_t>(RIG_REST), rest().written);
  EXPECT_EQ(5u, progress().foreign);
  arrive(3);
  settle();
  EXPECT_EQ(1u, counts().present);
  expect_entry(0, 0);
  rig_->worker.rest.taken = 1;
  arrive_other(99);
  settle();
  expect_entry(0, 99);
  expect_entry(1, 1);
  EXPECT_EQ(64u, posted());
  EXPECT_STREQ(nullptr, rig_->nic.broken);
}

TEST_F(DpaHandsOn, ADatagramOfNothingIsNone) {
  start_for_engine();
  ASSERT_TRUE(nic_receive(&rig_->nic, DPA_CQE_SEND, 0, nullptr, nullptr, 0));
  settle();
  EXPECT_EQ(0u, rest().written);
  EXPECT_EQ(1u, progress().foreign);
  EXPECT_STREQ(nullptr, rig_->nic.broken);
}

// A stream is divided among workers by ranges: each has its own range and sees the others' chunks
// as foreign.
TEST_F(DpaWorker, WorkersShareAStreamByRanges) {
  uint32_t present = 0;
  for (uint32_t part = 0; part < 3; part++) {
    stream_.first = part * 100;
    stream_.count = 100;
    observing_.reset();
    start(RIG_HEADER);
    for (uint32_t chunk = 0; chunk < 300; chunk++) {
      arrive(chunk);
      if (chunk % 8 == 7) settle();
    }
    settle();
    present += counts().present;
    EXPECT_EQ(200u, progress().foreign);
    EXPECT_EQ(static_cast<uint8_t>(part * 100 + 99), byte(99));
    EXPECT_STREQ(nullptr, rig_->nic.broken);
  }
  EXPECT_EQ(300u, present);
}

}  // namespace
}  // namespace mcast::dpa
