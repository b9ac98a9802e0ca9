// The child of a fork that happens while another thread is inside a group. Here that thread is the
// forking one itself, while it holds the group's lock.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/group_base.h"
#include "support/errors.h"

namespace mcast::test {
namespace {

GroupSpec two_ranks() {
  GroupSpec spec;
  spec.name = "forked";
  spec.size = 2;
  return spec;
}

class ForkingGroup final : public GroupBase {
 public:
  explicit ForkingGroup(std::function<void()> under_lock)
      : GroupBase(two_ranks()), under_lock_(std::move(under_lock)) {}
  std::function<void()> waker() const override {
    return [] {};
  }
  GroupStats stats() const override { return common_stats(); }

 private:
  Status push(LaneId, Post) override {
    under_lock_();
    return {};
  }
  void fail_lanes(const Status&) override {}
  void close_lanes(Nanos, bool, Completion closed) override { closed({}); }
  bool has_lanes() const override { return true; }
  std::function<void()> under_lock_;
};

// Forks in the middle of a post; the child makes `call` while the lock is held forever. Returns
// false if it did not return or `call` was false.
bool in_forked_child(const std::function<bool(GroupBase&)>& call) {
  pid_t child = -1;
  std::unique_ptr<ForkingGroup> group;
  group = std::make_unique<ForkingGroup>([&] {
    child = ::fork();
    if (child != 0) return;
    ::alarm(10);
    ::_exit(call(*group) ? 0 : 1);
  });
  EXPECT_TRUE(group->post_barrier({}).ok());
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(ForkedGroup, APostIsRefusedWhateverTheParentWasDoing) {
  std::vector<std::byte> bytes(8);
  const Slice slice{std::make_shared<Region>(bytes.data(), 8, nullptr), 0, 8};
  const Slice half{slice.region, 0, 4}, other{slice.region, 4, 4};
  const Reducing sum{Element::kInt32, Reduction::kSum};
  const auto refused = [](const Result<Sequence>& posted) {
    return bool(is_error(posted.status(), ErrorId::group_of_parent, {{"group", "forked"}}));
  };
  EXPECT_TRUE(in_forked_child([&](GroupBase& g) { return refused(g.post_barrier({})); }));
  EXPECT_TRUE(
      in_forked_child([&](GroupBase& g) { return refused(g.post_broadcast(half, 0, {})); }));
  EXPECT_TRUE(in_forked_child([&](GroupBase& g) {
    return refused(g.post_allgather(half, {other, other}, {}));
  }));
  EXPECT_TRUE(in_forked_child(
      [&](GroupBase& g) { return refused(g.post_allreduce(half, half, sum, {})); }));
  EXPECT_TRUE(
      in_forked_child([&](GroupBase& g) { return g.post_part(Post()).code() == Code::kClosed; }));
}

TEST(ForkedGroup, ClosingAndStatsDoNotWaitForTheParentsThreads) {
  EXPECT_TRUE(in_forked_child([](GroupBase& g) { return g.close(kSecond).ok(); }));
  EXPECT_TRUE(in_forked_child([](GroupBase& g) { return g.give_up(kSecond).ok(); }));
  EXPECT_TRUE(in_forked_child([](GroupBase& g) {
    g.abort("nobody hears it");
    g.fail_part(Status(Code::kAborted, "nor this"));
    return true;
  }));
  EXPECT_TRUE(in_forked_child([](GroupBase& g) { return g.stats().name == "forked"; }));
}

}  // namespace
}  // namespace mcast::test
