// Groups that only copy. A test uses them to carry out, step by step, the parts into which an
// operation is split.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/rng.h"
#include "runtime/group_base.h"

namespace mcast::test {

inline GroupSpec spec_of(const std::string& name, uint32_t rank, uint32_t size) {
  GroupSpec spec;
  spec.name = name;
  spec.rank = static_cast<Member>(rank);
  spec.size = size;
  return spec;
}

inline wire::Descriptor call(wire::Kind kind, Member root, size_t bytes) {
  return {kind, 6, root, bytes, "op"};
}

// A group whose operations the test carries out.
class CopyGroup final : public GroupBase {
 public:
  CopyGroup(const std::string& name, uint32_t rank, uint32_t size)
      : GroupBase(spec_of(name, rank, size)) {}
  std::function<void()> waker() const override {
    return [] {};
  }
  GroupStats stats() const override { return common_stats(); }
  // Starts as after this many operations on each lane.
  void start_at(Sequence next) { state_->next = {next, next}; }

  std::deque<Post> posts;
  std::vector<wire::Descriptor> seen;
  bool refuses = false;

 private:
  Status push(LaneId, Post post) override {
    if (refuses) return make_error<ErrorId::rank_lost>(1, "it was killed");
    seen.push_back(post.descriptor);
    posts.push_back(std::move(post));
    return {};
  }
  void fail_lanes(const Status& why) override {
    while (!posts.empty()) {
      const Post post = std::move(posts.front());
      posts.pop_front();
      post.done(why);
    }
  }
  void close_lanes(Nanos, bool, Completion closed) override { closed({}); }
  bool has_lanes() const override { return true; }
};

inline std::byte pattern(Member root, size_t at, uint64_t salt) {
  return static_cast<std::byte>(mix64(salt * 31 + root * 7919 + at / 8) >> at % 8 * 8);
}

// Carries out the oldest operation of one group, whose members are in the order of their ranks, as
// far as its sources are ready. With `partly`, a random part of the ready bytes is moved (a
// network); otherwise a source is moved as a whole (shared memory). `done` is by slot and kept
// between calls. Returns false if nothing could be done.
inline bool carry_out(std::vector<CopyGroup*>& group, std::vector<size_t>& done, bool partly,
                      Rng& rng) {
  for (CopyGroup* g : group) {
    if (g->posts.empty()) return false;
  }
  const wire::Descriptor d = group[0]->posts[0].descriptor;
  for (CopyGroup* g : group) EXPECT_TRUE(g->posts[0].descriptor.same(d));
  const bool all = d.kind == wire::Kind::kAllgather;
  const size_t slots = all ? group.size() : 1;
  done.resize(slots);
  bool moved = false, complete = true;
  for (size_t s = 0; s < slots; s++) {
    const Post& from = group[all ? s : d.root]->posts[0];
    const size_t offset = from.input.offset, ready = from.input.region->readable();
    size_t end = std::min<size_t>(d.bytes, ready < offset ? 0 : ready - offset);
    if (!partly && end < d.bytes) end = 0;
    if (partly && end > done[s]) end = done[s] + 1 + rng.below(end - done[s]);
    if (end > done[s]) {
      moved = true;
      for (CopyGroup* g : group) {
        const Post& to = g->posts[0];
        if (&to == &from) continue;
        std::memcpy(to.outputs[s].data() + done[s], from.input.data() + done[s], end - done[s]);
        if (to.on_completed) to.on_completed(static_cast<uint32_t>(s), end);
      }
      done[s] = end;
    }
    complete = complete && done[s] == d.bytes;
  }
  if (!complete) return moved;
  done.clear();
  for (CopyGroup* g : group) {
    const Post post = std::move(g->posts.front());
    g->posts.pop_front();
    post.done({});
  }
  return true;
}

}  // namespace mcast::test
