// Subgroups: packet parallelism (SC24 paper, section IV-C: "multicast subgroups"). A large block is
// cut into parts that travel in parallel, each in a group over the same ranks with a separate lane:
// thread, sockets, multicast address. For hosts with spare cores and links that one thread cannot
// fill.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/split.h"

namespace mcast {

class Subgroups final : public Split {
 public:
  // All have the whole group's ranks, in its order.
  explicit Subgroups(std::vector<std::shared_ptr<GroupBase>> groups) : Split(std::move(groups)) {}

  bool carries(const wire::Descriptor& descriptor) const override;
  std::string streams_text() const override;
  void add_to(GroupStats& stats) const override;

 private:
  void post_parts(const Post& whole, const std::shared_ptr<Parts>& parts) override;
};

}  // namespace mcast
