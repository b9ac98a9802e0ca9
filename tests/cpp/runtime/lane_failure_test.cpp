// A failure travels on each lane by itself. It must not overtake, on the other lane, the report
// that an operation was complete everywhere.
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "support/errors.h"
#include "support/ranks/programs.h"

namespace mcast::test {
namespace {

// Rank 0 knows that the barrier is over and fails the group. Rank 2 receives the failure at once on
// the reduce lane, whose first operation is 0; the release of the barrier and the failure are late
// on the multicast lane.
TEST(LaneFailure, LeavesTheOtherLaneTimeToReportReleases) {
  expect_all_good(run_ranks(3, 60, [&](Member rank, DirectoryStore& store) {
    std::map<std::string, std::string> settings;
    if (rank == 2) {
      settings["faults"] =
          "delay:type=released,sequence=1-100000,time=10;"
          "delay:type=abort,sequence=1-100000,time=10";
    }
    auto group = make_group("g", rank, 3, store, settings);
    if (!group) return false;
    for (int i = 0; i < 3; i++) {
      const Status over = barrier(*group);
      EXPECT_TRUE(over.ok()) << over.to_string();
    }
    if (rank == 0) group->abort("enough");
    const Status next = barrier(*group, 20 * kSecond);
    EXPECT_TRUE(is_error(next, ErrorId::aborted, {{"rank", "0"}, {"reason", "enough"}}));
    return true;
  }));
}

// No frame arrives on the other lane, since no other rank has failed there: it fails by itself.
TEST(LaneFailure, EndsWhatIsInFlightOnTheOtherLane) {
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto group = make_group("g", rank, 2, store);
    if (!group || !barrier(*group).ok()) return false;
    std::vector<int32_t> data(1000);
    const Slice slice = whole(data);
    std::promise<Status> reduced;
    PostOptions options;
    options.done = [&](const Status& status) { reduced.set_value(status); };
    if (rank == 0) {  // rank 1 never calls it
      const Reducing how{Element::kInt32, Reduction::kSum, 1};
      if (!group->post_allreduce(slice, slice, how, std::move(options)).ok()) return false;
    }
    std::vector<std::byte> bytes(rank == 0 ? 64 : 128);
    EXPECT_EQ(allgather(*group, bytes).code(), Code::kMismatch);
    if (rank == 0) {
      EXPECT_EQ(reduced.get_future().get().code(), Code::kMismatch);
    }
    return true;
  }));
}

}  // namespace
}  // namespace mcast::test
