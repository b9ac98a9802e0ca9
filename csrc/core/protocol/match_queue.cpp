// One queue of waiting receives for each tag and source, "any source" being a source of its own,
// and the same for messages. All entries are stamped in the order of their arrival, so that the
// older of two queue heads is found by comparing: a message checks two queues, a receive from any
// source as many as there are sources with messages of its tag.
#include "protocol/match_queue.h"

#include <algorithm>

namespace mcast {

std::optional<MatchQueue::Message> MatchQueue::post(uint64_t receive, Member source, uint32_t tag) {
  auto oldest = messages_.end();
  if (source != kAnySource) {
    oldest = messages_.find({tag, source});
  } else {
    for (auto line = messages_.lower_bound({tag, 0});
         line != messages_.end() && line->first.first == tag; ++line) {
      if (oldest == messages_.end() || line->second.front().stamp < oldest->second.front().stamp) {
        oldest = line;
      }
    }
  }
  if (oldest == messages_.end()) {
    receives_[{tag, source}].push_back({stamps_++, receive});
    waiting_.emplace(receive, Key{tag, source});
    by_source_[source]++;
    return std::nullopt;
  }
  const Message message{oldest->first.second, oldest->second.front().name};
  oldest->second.pop_front();
  if (oldest->second.empty()) messages_.erase(oldest);
  unclaimed_--;
  return message;
}

std::optional<uint64_t> MatchQueue::arrive(Message message, uint32_t tag) {
  auto line = receives_.find({tag, message.source});
  const auto any = receives_.find({tag, kAnySource});
  if (line == receives_.end() ||
      (any != receives_.end() && any->second.front().stamp < line->second.front().stamp)) {
    line = any;
  }
  if (line == receives_.end()) {
    messages_[{tag, message.source}].push_back({stamps_++, message.number});
    unclaimed_++;
    return std::nullopt;
  }
  const uint64_t receive = line->second.front().name;
  const Member source = line->first.second;
  line->second.pop_front();
  if (line->second.empty()) receives_.erase(line);
  stop_waiting(receive, source);
  return receive;
}

bool MatchQueue::withdraw(uint64_t receive) {
  const auto found = waiting_.find(receive);
  if (found == waiting_.end()) return false;
  const Key key = found->second;
  const auto line = receives_.find(key);
  std::erase_if(line->second, [&](const auto& entry) { return entry.name == receive; });
  if (line->second.empty()) receives_.erase(line);
  stop_waiting(receive, key.second);
  return true;
}

std::vector<Member> MatchQueue::awaited() const {
  std::vector<Member> sources;
  for (const auto& [source, count] : by_source_) sources.push_back(source);
  return sources;
}

void MatchQueue::stop_waiting(uint64_t receive, Member source) {
  waiting_.erase(receive);
  const auto count = by_source_.find(source);
  if (--count->second == 0) by_source_.erase(count);
}

}  // namespace mcast
