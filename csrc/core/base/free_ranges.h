// Free ranges of an address space: first fit from the lowest address, with adjacent ranges merged.
// Users take few ranges, each of many pages, so lists are short.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace mcast {

// Not thread-safe.
class FreeRanges {
 public:
  struct Range {
    size_t bytes;
    size_t touched;  // upper bound of the touched bytes in it, as reported by the user
  };
  struct Taken {
    uint64_t at;
    size_t touched;
  };

  // All of [0, bytes) is free, and untouched.
  explicit FreeRanges(size_t bytes) : ranges_{{0, {bytes, 0}}} {}

  // None: no free range is long enough.
  std::optional<Taken> take(size_t bytes) {
    const auto it = std::find_if(ranges_.begin(), ranges_.end(),
                                 [bytes](const auto& r) { return r.second.bytes >= bytes; });
    if (it == ranges_.end()) return std::nullopt;
    const Taken taken{it->first, std::min(it->second.touched, bytes)};
    const Range rest{it->second.bytes - bytes, it->second.touched - taken.touched};
    ranges_.erase(it);
    if (rest.bytes > 0) ranges_[taken.at + bytes] = rest;
    return taken;
  }

  void give_back(uint64_t at, Range range) {
    auto next = ranges_.lower_bound(at);
    if (next != ranges_.end() && next->first == at + range.bytes) {
      range = {range.bytes + next->second.bytes, range.touched + next->second.touched};
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second.bytes == at) {
        before->second.bytes += range.bytes;
        before->second.touched += range.touched;
        return;
      }
    }
    ranges_.emplace(at, range);
  }

  // Calls act(at, range) for touched ranges, from the highest on, until enough() returns true;
  // ranges for which act() returned true count as untouched then.
  template <typename Enough, typename Act>
  void untouch(Enough&& enough, Act&& act) {
    for (auto it = ranges_.rbegin(); it != ranges_.rend() && !enough(); ++it) {
      if (it->second.touched > 0 && act(it->first, it->second)) it->second.touched = 0;
    }
  }

 private:
  std::map<uint64_t, Range> ranges_;  // never adjacent
};

}  // namespace mcast
