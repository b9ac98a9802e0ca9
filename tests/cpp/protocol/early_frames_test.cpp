// EarlyFrames keeps frames that arrive before the post, within bounds.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "protocol/early_frames.h"
#include "protocol/unasked_account.h"
#include "wire/frame.h"

namespace mcast::test {
namespace {

// Contributions of every size: the store accepts everything that the account allows to be sent.
TEST(EarlyFrames, AcceptAllThatAnAccountAllows) {
  for (size_t payload = 1; payload <= 16384; payload = payload * 3 / 2 + 1) {
    UnaskedAccount account(2);
    EarlyFrames early(2);
    const std::vector<std::byte> body(wire::kReduceHead + payload);
    const size_t cost = early_cost(body.size());
    Sequence next = 0, released = 0;
    Rng rng(payload);
    for (int turn = 0; turn < 2000; turn++) {
      while (account.room(1, next, cost, next == released)) {
        account.charge(1, next, cost);
        wire::FrameHeader header;
        header.type = wire::FrameType::kReduceData;
        header.member = 0;
        header.sequence = next++;
        ASSERT_TRUE(early.keep(header, body)) << payload;
      }
      ASSERT_LE(early.held_reductions(0), UnaskedAccount::kMost + cost);
      // The other member makes some of the calls.
      for (uint64_t n = rng.below(20); n > 0 && released < next; n--) {
        ASSERT_EQ(early.take(released).size(), 1u);
        account.give_back(1, cost);
        released++;
      }
    }
    while (released < next) {
      (void)early.take(released++);
      account.give_back(1, cost);
    }
    EXPECT_EQ(early.held_reductions(0), 0u);
    EXPECT_EQ(account.charged(1), 0u);
  }
}

TEST(EarlyFrames, CountMembersApartAndFramesByWhatTheyTake) {
  EarlyFrames early(2);
  wire::FrameHeader header;
  header.type = wire::FrameType::kReduceData;
  size_t frames = 0;
  while (early.keep(header, {})) frames++;
  EXPECT_EQ(frames, EarlyFrames::kMostReductions / early_cost(0)) << "empty ones are not free";
  EXPECT_FALSE(early.keep(header, {}));
  header.type = wire::FrameType::kCredit;
  EXPECT_TRUE(early.keep(header, {})) << "what is in control of operations has room of its own";
  header.type = wire::FrameType::kReduceData;
  header.member = 1;
  EXPECT_TRUE(early.keep(header, {}));
  EXPECT_EQ(early.take(0).size(), frames + 2);
  EXPECT_EQ(early.held_reductions(0) + early.held_reductions(1), 0u);
  EXPECT_TRUE(early.take(0).empty());
}

}  // namespace
}  // namespace mcast::test
