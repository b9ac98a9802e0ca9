// Carries a large broadcast or all-gather by other groups, its parts: by rails (runtime/rails.h) or
// by subgroups (runtime/subgroups.h). The whole group itself only checks that all ranks make the
// same call, and ends it for all (Post::delegated).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/group_base.h"

namespace mcast {

class Split {
 public:
  virtual ~Split() = default;

  // Whether operations like this one are split: the same on all ranks.
  virtual bool carries(const wire::Descriptor& descriptor) const = 0;
  // Receivers of large streams, for stats.
  virtual std::string streams_text() const = 0;
  // For errors of parts: the ranks of the parts, if they have different numbers there. May be
  // empty.
  virtual std::string ranks_text() const { return ""; }
  // Adds the counters of the parts.
  virtual void add_to(GroupStats& stats) const = 0;

  // Events of the parts of an operation. Any thread, one call at a time.
  struct Events {
    std::function<void()> arrived;               // all data is here
    std::function<void(const Status&)> trouble;  // the first part has failed; call fail() soon
    std::function<void()> ended;                 // all parts have ended; no memory is held any more
  };
  // `whole`: its `done` is not called. The caller serializes the calls.
  void post(Post whole, Events events);
  // Fails the operations in flight. Any thread.
  void fail(const Status& why);
  // Call after the readable ends of sources were raised.
  std::function<void()> waker() const;

 protected:
  explicit Split(std::vector<std::shared_ptr<GroupBase>> groups);

  // One operation.
  struct Parts {
    std::mutex mutex;
    size_t left = 1;  // parts, plus one for the posting itself
    Status first;
    Events events;
    void one(const Status& status);
  };
  virtual void post_parts(const Post& whole, const std::shared_ptr<Parts>& parts) = 0;
  static void part(GroupBase& group, Post post, const std::shared_ptr<Parts>& parts);
  static void add_counters(GroupStats& stats, const GroupStats& part);

  const std::vector<std::shared_ptr<GroupBase>> groups_;
};

// `length` bytes of `whole` from `offset`.
Slice within(const Slice& whole, size_t offset, size_t length);

// Divides `bytes` into `parts` parts. All but the last ones have equal lengths, a multiple of 64.
struct Shares {
  Shares(size_t bytes, size_t parts);
  size_t share;
  std::vector<size_t> lengths;  // may be 0 at the end
};

// Completed end of one output whose parts arrive in parallel: the length of its final prefix.
class Prefix {
 public:
  Prefix(std::vector<size_t> lengths, std::function<void(uint64_t)> on_raised)
      : lengths_(std::move(lengths)), here_(lengths_.size()), on_raised_(std::move(on_raised)) {}
  // Any thread.
  void raise(size_t part, size_t bytes);

 private:
  std::mutex mutex_;
  const std::vector<size_t> lengths_;
  std::vector<size_t> here_;
  uint64_t raised_ = 0;
  const std::function<void(uint64_t)> on_raised_;
};

}  // namespace mcast
