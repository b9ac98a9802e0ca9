// Posts that a client of an engine does not finish: the parts that are kept, and their maximum.
#include "host_engine/server/pending_posts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mcast::test {
namespace {

using service::PendingPosts;
using testing::HasSubstr;

ipc::PostRecord begun(uint32_t group, size_t runs) {
  ipc::PostRecord post;
  post.group = group;
  post.more = true;
  post.runs.resize(runs);
  return post;
}

ipc::PartRecord part_of(uint32_t group, size_t runs, bool more) {
  return {group, more, std::vector<ipc::SliceRun>(runs)};
}

TEST(PendingPosts, APostIsWholeWithItsLastPart) {
  PendingPosts posts(4);
  std::optional<ipc::PostRecord> whole;
  EXPECT_EQ(posts.begin(begun(7, 2), true), "");
  EXPECT_EQ(posts.begin(begun(8, 1), true), "");
  EXPECT_EQ(posts.add(part_of(7, 3, true), whole), "");
  EXPECT_FALSE(whole);
  EXPECT_EQ(posts.bytes(), 6 * sizeof(ipc::SliceRun));
  EXPECT_EQ(posts.add(part_of(7, 1, false), whole), "");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->group, 7u);
  EXPECT_EQ(whole->runs.size(), 6u);
  EXPECT_EQ(posts.bytes(), sizeof(ipc::SliceRun));
}

TEST(PendingPosts, InvalidSequencesAreErrors) {
  PendingPosts posts(2);
  std::optional<ipc::PostRecord> whole;
  EXPECT_EQ(posts.begin(begun(1, 1), true), "");
  EXPECT_THAT(posts.begin(begun(1, 1), true), HasSubstr("a post inside a post"));
  EXPECT_THAT(posts.add(part_of(2, 1, false), whole), HasSubstr("a part of no post"));
  EXPECT_EQ(posts.begin(begun(2, 1), false), "");
  EXPECT_THAT(posts.begin(begun(3, 1), false), HasSubstr("began too many posts"));
  EXPECT_THAT(posts.add(part_of(1, ipc::kMostSlices, true), whole), HasSubstr("too many slices"));
}

TEST(PendingPosts, PostsToAnUnknownGroupAreNotKept) {
  PendingPosts posts(4);
  std::optional<ipc::PostRecord> whole;
  EXPECT_EQ(posts.begin(begun(1, 1000), false), "");
  EXPECT_EQ(posts.begin(begun(2, 1000), true), "");
  posts.pass_over(2);  // the group is closed
  for (int i = 0; i < 1000; i++) {
    EXPECT_EQ(posts.add(part_of(1, 1000, true), whole), "");
    EXPECT_EQ(posts.add(part_of(2, 1000, true), whole), "");
  }
  EXPECT_EQ(posts.bytes(), 0u);
  EXPECT_EQ(posts.add(part_of(1, 1, false), whole), "");
  EXPECT_TRUE(whole && whole->runs.empty());
}

TEST(PendingPosts, UnfinishedPostsAreBoundedForAllGroupsTogether) {
  PendingPosts posts(256);
  std::string why;
  uint32_t group = 0;
  while (why.empty() && group < 256) why = posts.begin(begun(group++, 1000), true);
  std::optional<ipc::PostRecord> whole;
  while (why.empty()) why = posts.add(part_of(0, 1000, true), whole);
  EXPECT_THAT(why, HasSubstr("its process has more than 8M"));
  EXPECT_LE(posts.bytes(), PendingPosts::kMostBytes + 1000 * sizeof(ipc::SliceRun));
}

}  // namespace
}  // namespace mcast::test
