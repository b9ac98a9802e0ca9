// Messages between ranks, for tests of the whole engine.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "support/ranks/programs.h"

namespace mcast::test {

struct EngineMessage {
  std::vector<std::byte> bytes;
  std::shared_ptr<std::atomic<Member>> source = std::make_shared<std::atomic<Member>>(kNoMember);
  std::promise<Status> ended;
  std::future<Status> end = ended.get_future();
};

inline std::shared_ptr<EngineMessage> post_one(Group& group, bool receives, Member peer,
                                               uint32_t tag, size_t length, size_t seed,
                                               Nanos timeout = 30 * kSecond) {
  auto m = std::make_shared<EngineMessage>();
  m->bytes.resize(length);
  if (!receives) fill(m->bytes, 0, length, seed);
  MessageCall call;
  call.receives = receives;
  call.memory = {std::make_shared<Region>(m->bytes.data(), length, m), 0, length};
  call.peer = peer;
  call.tag = tag;
  call.source = m->source;
  PostOptions options;
  options.timeout = timeout;
  options.done = [m](const Status& status) { m->ended.set_value(status); };
  const Status posted = group.post_message(std::move(call), std::move(options));
  if (!posted.ok()) m->ended.set_value(posted);
  return m;
}

// Every rank sends to every other at once and receives in an order of its own, the last message
// from any source. Each round has its own tag: a rank that is ahead has sent its next message
// already, which a receive from any source would take too.
inline bool talk(Group& group, size_t length, size_t round) {
  const Member self = group.rank(), size = group.size();
  const auto tag = static_cast<uint32_t>(round);
  std::vector<std::shared_ptr<EngineMessage>> out, in;
  for (Member r = 0; r < size; r++) {
    if (r != self) out.push_back(post_one(group, false, r, tag, length, round * 100 + self));
  }
  for (Member r = size; r-- > 0;) {
    const bool any = r == 0 || (r == 1 && self == 0);
    if (r != self) in.push_back(post_one(group, true, any ? kNoMember : r, tag, length, 0));
  }
  for (const auto& m : out) {
    if (const Status s = m->end.get(); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
  }
  for (const auto& m : in) {
    if (const Status s = m->end.get(); !s.ok()) return ADD_FAILURE() << s.to_string(), false;
    const Member from = m->source->load();
    if (!holds(m->bytes, 0, length, round * 100 + from)) {
      return ADD_FAILURE() << "from rank " << from << " on rank " << self, false;
    }
  }
  return true;
}

}  // namespace mcast::test
