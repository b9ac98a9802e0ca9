// How a group carries out a large broadcast or all-gather by other groups, its parts: by rails
// (engine/rails.h) or by subgroups (engine/subgroups.h). The whole group itself only sees to it
// that all ranks make the same call, and ends it for all (Post::delegated).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/group_base.h"

namespace mcast {

class Split {
 public:
  virtual ~Split() = default;

  // Whether operations like this one are split: the same on all ranks.
  virtual bool carries(const wire::Descriptor& descriptor) const = 0;
  // Who receives large streams, for stats.
  virtual std::string streams_text() const = 0;
  // For errors of parts, whose ranks may be their own: which those are. May be empty.
  virtual std::string ranks_text() const { return ""; }
  // Adds what the parts have moved.
  virtual void add_to(GroupStats& stats) const = 0;

  // What becomes of the parts of an operation. Any thread, one call at a time.
  struct Events {
    std::function<void()> arrived;               // all is here
    std::function<void(const Status&)> trouble;  // the first part has failed; call fail() soon
    std::function<void()> ended;                 // all parts have; no memory is held any more
  };
  // `whole`: its `done` is not called. The caller serializes the calls.
  void post(Post whole, Events events);
  // Fails what is in flight. Any thread.
  void fail(const Status& why);
  // Sources have become readable further.
  std::function<void()> waker() const;

 protected:
  explicit Split(std::vector<std::shared_ptr<GroupBase>> groups);

  // One operation.
  struct Parts {
    std::mutex mutex;
    size_t left = 1;  // parts, and the posting
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

// `bytes` in `parts` parts: all but the last ones of one length, a multiple of 64.
struct Shares {
  Shares(size_t bytes, size_t parts);
  size_t share;
  std::vector<size_t> lengths;  // may be 0 at the end
};

// Completed ends of one output whose parts arrive side by side: how far it is final from its start.
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
