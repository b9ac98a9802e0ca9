// Contents that the operations of a world share, kept as long as one of them needs them: references
// of data that moves (content.h), contributions of data that is reduced. Threads: one.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "sim/network/content.h"
#include "sim/world/contributions.h"

namespace mcast::sim {

class Contents {
 public:
  std::shared_ptr<const Reference> reference(uint64_t op, uint32_t streams, size_t block,
                                             uint32_t root) {
    for (const auto& weak : references_) {
      const auto there = weak.lock();
      if (there && there->op() == op && there->streams() == streams && there->block() == block) {
        return there;
      }
    }
    return add(references_, std::make_shared<const Reference>(op, streams, block, root));
  }
  std::shared_ptr<const Contributions> contributions(const Contributions::Shape& shape) {
    for (const auto& weak : contributions_) {
      const auto there = weak.lock();
      if (there && there->shape() == shape) return there;
    }
    return add(contributions_, std::make_shared<const Contributions>(shape));
  }

 private:
  template <typename T>
  static std::shared_ptr<T> add(std::vector<std::weak_ptr<T>>& all, std::shared_ptr<T> made) {
    std::erase_if(all, [](const auto& weak) { return weak.expired(); });
    all.push_back(made);
    return made;
  }

  std::vector<std::weak_ptr<const Reference>> references_;
  std::vector<std::weak_ptr<const Contributions>> contributions_;
};

}  // namespace mcast::sim
