// Counts down the parts of an operation. The posting counts as one part, so that an operation whose
// parts end while they are posted ends only once.
#include "runtime/split.h"

#include <algorithm>
#include <utility>

namespace mcast {

Split::Split(std::vector<std::shared_ptr<GroupBase>> groups) : groups_(std::move(groups)) {}

void Split::Parts::one(const Status& status) {
  bool trouble = false, over = false, good = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    trouble = first.ok() && !status.ok();
    if (trouble) first = status;
    over = --left == 0;
    good = first.ok();
  }
  if (trouble) events.trouble(status);
  if (over && good) events.arrived();
  if (over) events.ended();
}

void Split::post(Post whole, Events events) {
  auto parts = std::make_shared<Parts>();
  parts->events = std::move(events);
  post_parts(whole, parts);
  // The parts own its memory now.
  whole = {};
  parts->one({});
}

void Split::part(GroupBase& group, Post post, const std::shared_ptr<Parts>& parts) {
  {
    std::lock_guard<std::mutex> lock(parts->mutex);
    parts->left++;
  }
  post.done = [parts](const Status& status) { parts->one(status); };
  if (Status status = group.post_part(std::move(post)); !status.ok()) parts->one(status);
}

void Split::fail(const Status& why) {
  for (const auto& group : groups_) group->fail_part(why);
}

std::function<void()> Split::waker() const {
  std::vector<std::function<void()>> wakers;
  for (const auto& group : groups_) wakers.push_back(group->waker());
  return [wakers] {
    for (const auto& wake : wakers) wake();
  };
}

void Split::add_counters(GroupStats& stats, const GroupStats& part) {
  for (size_t i = 0; i < stats.counters.size(); i++) {
    const auto c = static_cast<Counter>(i);
    // Parts do not count as operations.
    if (c == Counter::ops_posted || c == Counter::ops_completed || c == Counter::ops_failed) {
      continue;
    }
    // Counters of the whole lane, which the group may share with its parts.
    const bool lanes = c == Counter::foreign || c == Counter::neighbour || c == Counter::late;
    if (lanes || c == Counter::malformed || c == Counter::fragmented) continue;
    stats.counters[i].second += part.counters[i].second;
  }
  stats.security.sealed += part.security.sealed;
  stats.security.opened += part.security.opened;
  // Each part has separate epochs: shows the most advanced one.
  stats.security.epoch = std::max(stats.security.epoch, part.security.epoch);
}

Slice within(const Slice& whole, size_t offset, size_t length) {
  return {whole.region, whole.offset + offset, length};
}

Shares::Shares(size_t bytes, size_t parts) : share((bytes + parts - 1) / parts) {
  share = (share + 63) / 64 * 64;
  for (size_t i = 0; i < parts; i++) {
    lengths.push_back(std::min(share, bytes - std::min(bytes, i * share)));
  }
}

void Prefix::raise(size_t part, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  here_[part] = bytes;
  uint64_t sum = 0;
  for (size_t i = 0; i < lengths_.size(); i++) {
    sum += here_[i];
    if (here_[i] < lengths_[i]) break;
  }
  if (sum > raised_) on_raised_(raised_ = sum);
}

}  // namespace mcast
