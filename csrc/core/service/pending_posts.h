// Posts of one client whose further runs are awaited: what it may have kept without finishing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ipc/record.h"

namespace mcast::service {

// Not thread-safe.
class PendingPosts {
 public:
  // Of the runs of all that are not finished: two posts of the widest group.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 20;

  // `most` at once.
  explicit PendingPosts(uint32_t most) : most_(most) {}

  // Each: "" or why the client is ended.
  //
  // A post that says that more follows. `there`: its group is; else runs are passed over.
  std::string begin(ipc::PostRecord post, bool there);
  // `whole`: the post, with the last of its runs.
  std::string add(const ipc::PartRecord& part, std::optional<ipc::PostRecord>& whole);

  // The group is closed: what is awaited for it comes and is passed over.
  void pass_over(uint32_t group);
  uint64_t bytes() const { return bytes_; }

 private:
  struct Pending {
    ipc::PostRecord post;
    bool there = false;
  };
  std::string charge(size_t runs);
  void drop_runs(Pending& pending);

  const uint32_t most_;
  std::map<uint32_t, Pending> posts_;  // by group
  uint64_t bytes_ = 0;
};

}  // namespace mcast::service
