// How ranks handle a kernel that refuses to send: datagrams for lack of memory or room (sent
// later), by a firewall or without a route (lost, so repaired), and connections that break (all
// ranks raise).
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <numeric>

#include "kernel.h"
#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

struct SendCase {
  const char* name;
  Refusal refusal;
  bool lost = false;  // refused datagrams are not sent later
};

// Counts lost data that arrived again, summed over all ranks and all ways of repair. A rank that
// lost nothing has none, and chunks that all have lost are multicast again.
uint64_t came_again(Group& group, Member rank, uint32_t size) {
  std::vector<uint64_t> counts(size);
  counts[rank] = counter(group, "repair_chunks_received") +
                 counter(group, "early_chunks_received") + counter(group, "ring_bytes_sent") +
                 counter(group, "remulticast_chunks");
  std::vector<std::byte> all(size * sizeof(uint64_t));
  std::memcpy(all.data(), counts.data(), all.size());
  const Status status = allgather(group, all, 20 * kSecond);
  EXPECT_TRUE(status.ok()) << status.to_string();
  std::memcpy(counts.data(), all.data(), all.size());
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

class RefusedDatagrams : public testing::TestWithParam<SendCase> {};

TEST_P(RefusedDatagrams, CostNoBytes) {
  const Refusal refusal = GetParam().refusal;
  const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    refuse_sends(refusal);
    auto group = make_group("g", rank, 3, store);
    if (!group || !work(*group, 300'000, 3) || !work(*group, 500, 10)) return false;
    if (!reduce_all_ways(*group, 40'000, 3)) return false;
    EXPECT_GT(refused_sends(), 0u);
    EXPECT_EQ(counter(*group, "ops_failed"), 0u);
    if (!GetParam().lost) return true;
    // Refusals follow the number of the send; sometimes no refused send held data.
    uint64_t again = came_again(*group, rank, 3);
    for (int round = 0; round < 50 && again == 0; round++) {
      if (!work(*group, 300'000, 1)) return false;
      again = came_again(*group, rank, 3);
    }
    EXPECT_GT(again, 0u) << "what was lost has come again, to some rank";
    return true;
  });
  expect_all_good(ends);
}

INSTANTIATE_TEST_SUITE_P(
    Errors, RefusedDatagrams,
    testing::Values(SendCase{"NoBuffers", {ENOBUFS, false, 0, 3, 5}},
                    SendCase{"NoBuffersForLong", {ENOBUFS, false, 40, 100, 130}},
                    SendCase{"NoMemory", {ENOMEM, false, 0, 1, 2}},
                    SendCase{"NoRoom", {EAGAIN, false, 0, 2, 5}},
                    SendCase{"TooLong", {EMSGSIZE, false, 20, 1, 9}},
                    SendCase{"Firewall", {EPERM, false, 20, 1, 3}, true},
                    SendCase{"NoRoute", {ENETUNREACH, false, 20, 8, 20}, true},
                    SendCase{"InterfaceDown", {ENETDOWN, false, 20, 1, 4}, true}),
    [](const auto& p) { return std::string(p.param.name); });

class RefusedStreams : public testing::TestWithParam<SendCase> {};

// Two of three ranks never see a refusal; they are notified.
TEST_P(RefusedStreams, RaiseOnAllRanks) {
  const Refusal refusal = GetParam().refusal;
  const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    if (rank == 1) refuse_sends(refusal);
    auto group = make_group("g", rank, 3, store);
    if (!group) return false;
    Status last;
    for (int round = 0; round < 2000 && last.ok(); round++) {
      std::vector<std::byte> all(3 * 200'000);
      fill(all, rank * 200'000, 200'000, static_cast<size_t>(round) * 100 + rank);
      last = allgather(*group, all, 20 * kSecond);
      for (uint32_t r = 0; last.ok() && r < 3; r++) {
        EXPECT_TRUE(holds(all, r * 200'000, 200'000, static_cast<size_t>(round) * 100 + r));
      }
    }
    EXPECT_EQ(last.code(), Code::kPeerLost) << last.to_string();
    EXPECT_EQ(rank == 1, refused_sends() > 0);
    EXPECT_FALSE(barrier(*group, 5 * kSecond).ok());
    EXPECT_GT(counter(*group, "aborts_sent") + counter(*group, "aborts_received"), 0u);
    return true;
  });
  expect_all_good(ends);
}

INSTANTIATE_TEST_SUITE_P(Errors, RefusedStreams,
                         testing::Values(SendCase{"BrokenPipe", {EPIPE, true, 30, 1000, 1000}},
                                         SendCase{"Reset", {ECONNRESET, true, 60, 1, 1000}},
                                         SendCase{"TimedOut", {ETIMEDOUT, true, 45, 1000, 1000}}),
                         [](const auto& p) { return std::string(p.param.name); });

// Full connections only cost time.
TEST(RefusedStreams, ForWantOfRoomCostNothing) {
  for (const int error : {EAGAIN, ENOBUFS}) {
    const auto ends = run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
      refuse_sends({error, true, 0, 1, 3});
      auto group = make_group("g", rank, 3, store, {{"algorithm", "ring"}});
      if (!group || !work(*group, 300'000, 3)) return false;
      EXPECT_GT(refused_sends(), 0u);
      return reduce_all_ways(*group, 40'000, 3);
    });
    expect_all_good(ends);
  }
}

}  // namespace
}  // namespace mcast::test
