// Posts of one client whose further runs are awaited, with a limit on the memory of unfinished
// posts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "host_engine/ipc/record.h"

namespace mcast::service {

// Not thread-safe.
class PendingPosts {
 public:
  // Maximum number of bytes of the runs of all unfinished posts: two posts of the widest group.
  static constexpr uint64_t kMostBytes = uint64_t{8} << 20;

  // At most `most` posts at the same time.
  explicit PendingPosts(uint32_t most) : most_(most) {}

  // Each returns "" or why the client is ended.
  //
  // Begins a post that announces further runs. `there`: its group exists; otherwise the runs are
  // skipped.
  std::string begin(ipc::PostRecord post, bool there);
  // `whole`: the complete post, set with the last of its runs.
  std::string add(const ipc::PartRecord& part, std::optional<ipc::PostRecord>& whole);

  // The group is closed: further runs of its posts are skipped.
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
