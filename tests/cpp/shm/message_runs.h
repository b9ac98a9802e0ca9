// Sends and receives for tests, each with its own memory, which no rank may need after its end.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "collective/messages.h"
#include "shm/host_world.h"

namespace mcast::test {

struct MessageRun {
  uint64_t id = 0;  // seeds the bytes of a send
  bool receives = false;
  Member rank = 0, peer = 0;
  uint32_t tag = 0;
  std::vector<std::byte> memory, got;  // got: the content at the end
  size_t there = 0;                    // bytes at the last progress report
  std::shared_ptr<std::atomic<Member>> source = std::make_shared<std::atomic<Member>>(kNoMember);
  int ends = 0;
  Status status;
};
using MessageRuns = std::vector<std::shared_ptr<MessageRun>>;

inline std::vector<std::byte> message_bytes(uint64_t id, size_t bytes) {
  std::vector<std::byte> data(bytes);
  Rng rng(id * 7919 + 1);
  for (std::byte& b : data) b = static_cast<std::byte>(rng.next());
  return data;
}

inline std::shared_ptr<MessageRun> a_send(Member from, Member to, uint32_t tag, size_t bytes,
                                          uint64_t id) {
  auto run = std::make_shared<MessageRun>();
  run->id = id;
  run->rank = from;
  run->peer = to;
  run->tag = tag;
  run->memory = message_bytes(id, bytes);
  return run;
}

inline std::shared_ptr<MessageRun> a_receive(Member at, Member from, uint32_t tag, size_t bytes) {
  auto run = std::make_shared<MessageRun>();
  run->receives = true;
  run->rank = at;
  run->peer = from;
  run->tag = tag;
  run->memory.resize(bytes);
  return run;
}

inline MessagePost post_of(const std::shared_ptr<MessageRun>& run, Nanos timeout = kNever) {
  MessagePost post;
  post.receives = run->receives;
  post.peer = run->peer;
  post.tag = run->tag;
  const size_t bytes = run->memory.size();
  post.memory = {std::make_shared<Region>(run->memory.data(), bytes, run), 0, bytes};
  post.timeout = timeout;
  post.source = run->source;
  post.completed_step = 100'000;
  post.on_completed = [run](uint64_t there) {
    EXPECT_TRUE(run->ends == 0 && there > run->there && there < run->memory.size());
    // Completed bytes must not be written again: a byte that is changed here and not restored would
    // show at the end.
    for (size_t at = run->there; at < there; at++) run->memory[at] ^= std::byte{0x5A};
    run->there = there;
  };
  post.done = [run](const Status& status) {
    run->ends++;
    run->status = status;
    for (size_t at = 0; at < run->there; at++) run->memory[at] ^= std::byte{0x5A};
    run->got = run->memory;
    std::fill(run->memory.begin(), run->memory.end(), std::byte{0xEE});
  };
  return post;
}

// Checks that the receive has the bytes of send `id` of rank `from`.
inline void expect_got(const MessageRun& run, Member from, uint64_t id) {
  ASSERT_EQ(run.ends, 1) << "receive of " << run.memory.size() << " bytes at rank " << run.rank;
  ASSERT_TRUE(run.status.ok()) << run.status.to_string();
  EXPECT_EQ(run.source->load(), from);
  EXPECT_TRUE(run.got == message_bytes(id, run.got.size())) << "message " << id;
}

// Posts it now.
inline std::shared_ptr<MessageRun> send(HostWorld& world, Member from, Member to, uint32_t tag,
                                        size_t bytes, uint64_t id, Nanos timeout = kNever) {
  auto run = a_send(from, to, tag, bytes, id);
  world.post(from, post_of(run, timeout));
  return run;
}

inline std::shared_ptr<MessageRun> receive(HostWorld& world, Member at, Member from, uint32_t tag,
                                           size_t bytes, Nanos timeout = kNever) {
  auto run = a_receive(at, from, tag, bytes);
  world.post(at, post_of(run, timeout));
  return run;
}

inline bool says(const MessageRun& run, const std::string& text) {
  return run.status.message().find(text) != std::string::npos;
}

}  // namespace mcast::test
