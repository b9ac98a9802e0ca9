// Bodies of messages between two ranks: they are read as they were written, anything else is
// refused.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "wire/frame.h"

namespace mcast::wire {
namespace {

TEST(Bodies, MessagesRoundTripAndTruncation) {
  Writer out;
  put_message_head(out, 5);
  ASSERT_EQ(out.bytes().size(), kMessageHead);
  MessageHead head;
  MessageData data;
  ASSERT_TRUE(parse_message_head(out.bytes(), head)) << "its first bytes may come later";
  EXPECT_EQ(head.total, 5u);
  EXPECT_TRUE(head.payload.empty());
  EXPECT_FALSE(parse_message_data(out.bytes(), data)) << "a later piece without bytes";
  out.put_text("12345");
  ASSERT_TRUE(parse_message_head(out.bytes(), head));
  EXPECT_EQ(head.payload.size(), 5u);
  ASSERT_TRUE(parse_message_data(out.bytes(), data));
  EXPECT_EQ(data.offset, 5u);
  EXPECT_EQ(data.payload.size(), 5u);
  out.put_text("6");
  EXPECT_FALSE(parse_message_head(out.bytes(), head)) << "more than the message has";
  Writer leave, credit;
  put_message_grant(leave, 1ull << 40);
  uint64_t end = 0;
  ASSERT_TRUE(parse_message_grant(leave.bytes(), end));
  EXPECT_EQ(end, 1ull << 40);
  put_message_credit(credit, {7, 1ull << 40});
  MessageCredit back;
  ASSERT_TRUE(parse_message_credit(credit.bytes(), back));
  EXPECT_EQ(back.heads, 7u);
  EXPECT_EQ(back.bytes, 1ull << 40);
  for (size_t n = 0; n < 16; n++) {
    EXPECT_FALSE(parse_message_credit(credit.bytes().first(n), back)) << n;
    if (n >= 8) continue;
    EXPECT_FALSE(parse_message_head(out.bytes().first(n), head)) << n;
    EXPECT_FALSE(parse_message_data(out.bytes().first(n), data)) << n;
    EXPECT_FALSE(parse_message_grant(leave.bytes().first(n), end)) << n;
  }
  EXPECT_FALSE(parse_message_grant(credit.bytes(), end)) << "too long";
  credit.put<uint8_t>(0);
  EXPECT_FALSE(parse_message_credit(credit.bytes(), back)) << "too long";
}

TEST(Parsers, RandomMessagesNeverCrash) {
  Rng rng(12);
  for (int i = 0; i < 20'000; i++) {
    std::vector<std::byte> bytes(rng.below(40));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
    // Lengths that heads could have.
    if (rng.chance(0.5) && bytes.size() >= 8) store<uint64_t>(bytes.data(), rng.below(50));
    MessageHead head;
    MessageData data;
    MessageCredit credit;
    uint64_t end = 0;
    EXPECT_EQ(parse_message_grant(bytes, end), bytes.size() == 8);
    EXPECT_EQ(parse_message_credit(bytes, credit), bytes.size() == 16);
    if (parse_message_head(bytes, head)) {
      ASSERT_LE(head.payload.size(), head.total);
    }
    if (parse_message_data(bytes, data)) {
      ASSERT_EQ(data.payload.size(), bytes.size() - kMessageHead);
    }
  }
}

TEST(Bodies, ADigestHasOneLength) {
  std::array<std::byte, 32> digest{};
  std::vector<std::byte> body(33);
  for (size_t i = 0; i < body.size(); i++) body[i] = static_cast<std::byte>(i + 1);
  for (size_t length = 0; length <= body.size(); length++) {
    EXPECT_EQ(parse_block_digest(ConstBytes(body).first(length), digest), length == 32) << length;
  }
  EXPECT_TRUE(std::equal(digest.begin(), digest.end(), body.begin()));
}

TEST(Frames, MessagesAreNoOperations) {
  for (uint8_t type = 1; type <= kFrameTypeMax; type++) {
    const auto of = static_cast<FrameType>(type);
    EXPECT_EQ(is_message(of), type >= 55 && type <= 58) << frame_type_name(of);
    EXPECT_FALSE(is_message(of) && (is_reduction(of) || is_exchange(of)));
  }
}

}  // namespace
}  // namespace mcast::wire
