// Records of the rings: they are read as they were written, and other bytes are not accepted.
#include "host_engine/ipc/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/status.h"
#include "host_engine/ipc/ring.h"
#include "support/seeds.h"

namespace mcast::ipc {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : rng_(seed) {}
  uint64_t below(uint64_t most) { return rng_() % most; }
  uint64_t any() { return rng_() >> below(64); }
  LaneId lane() { return static_cast<LaneId>(below(2)); }
  std::string text(size_t most) {
    std::string out(below(most + 1), ' ');
    for (char& c : out) c = static_cast<char>(below(256));
    return out;
  }
  std::vector<SliceRun> runs(size_t most) {
    std::vector<SliceRun> out(below(most + 1));
    for (SliceRun& run : out) {
      constexpr uint16_t kSpaces[] = {0, 1, 16, 17, 0xffff};
      run.space = static_cast<Space>(kSpaces[below(5)]);
      run.role = static_cast<Role>(below(2));
      run.count = static_cast<uint32_t>(1 + below(60));
      run.base = any() >> 2;
      run.length = any() >> 10;
      run.stride = run.count == 1 ? 0 : any() >> 10;
    }
    return out;
  }
  Submission submission() {
    const auto group = static_cast<uint32_t>(any()), sequence = static_cast<uint32_t>(any());
    switch (below(4)) {
      case 0: {
        PostRecord r;
        r.lane = lane();
        r.group = group;
        r.sequence = sequence;
        r.timeout = static_cast<Nanos>(any() >> 1);
        r.factor = 0.25;
        wire::Descriptor& d = r.descriptor;
        d.kind = static_cast<wire::Kind>(1 + below(wire::kKindMax));
        d.element = static_cast<uint8_t>(any());
        d.reduction = static_cast<uint8_t>(any());
        d.root = static_cast<Member>(any());
        d.bytes = any();
        d.name = text(kMostName);
        r.more = below(2) == 1;
        r.staged = below(2) == 1;
        r.runs = runs(kRunsInPost);
        return r;
      }
      case 1: {
        PartRecord r{group, below(2) == 1, runs(kRunsInPart - 1)};
        r.runs.push_back({});
        return r;
      }
      case 2: {
        MessageRecord r;
        r.group = group;
        r.number = sequence;
        r.receives = below(2) == 1;
        r.staged = !r.receives && below(2) == 1;
        r.peer = static_cast<Member>(any());
        r.tag = static_cast<uint32_t>(any());
        r.timeout = static_cast<Nanos>(any() >> 1);
        while (r.memory.length == 0) {
          for (const SliceRun& run : runs(1)) r.memory = run;
        }
        r.memory.count = 1;
        r.memory.stride = 0;
        r.memory.role = r.receives ? Role::kOutput : Role::kInput;
        return r;
      }
      default:
        if (below(2) == 0) return ReadyRecord{LaneId::kReduce, group, sequence, 0, any(), true};
        return ReadyRecord{lane(), group, sequence, static_cast<uint32_t>(any()), any()};
    }
  }
  Nanos moment() { return static_cast<Nanos>(any() >> 1); }
  Completed completed() {
    const auto group = static_cast<uint32_t>(any()), sequence = static_cast<uint32_t>(any());
    const auto code = static_cast<uint8_t>(below(static_cast<uint64_t>(Code::kInternal) + 1));
    if (below(3) == 0) {
      return MessageDoneRecord{group,
                               sequence,
                               static_cast<Member>(any()),
                               code,
                               code == 0 ? "" : text(kMostText),
                               code != 0 && below(2) == 0};
    }
    if (below(2) == 0) {
      return DoneRecord{lane(),
                        group,
                        sequence,
                        static_cast<uint32_t>(any()),
                        code,
                        code == 0 ? "" : text(kMostText),
                        moment(),
                        moment(),
                        code != 0 && below(2) == 0};
    }
    return FailedRecord{group, std::max<uint8_t>(code, 1), text(kMostText)};
  }

 private:
  std::mt19937_64 rng_;
};

bool fits_ring(const std::vector<std::byte>& bytes) {
  return bytes.size() >= kMinRecord && bytes.size() <= kMaxRecord && bytes.size() % 8 == 0 &&
         wire::load<uint32_t>(bytes.data()) == bytes.size();
}

TEST(IpcRecord, IsReadAsItWasWritten) {
  for (const uint64_t seed : test::seeds(400)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Draw draw(seed);
    const auto submitted = bytes_of(draw.submission());
    ASSERT_TRUE(fits_ring(submitted));
    const auto submission = parse_submission(submitted);
    ASSERT_TRUE(submission);
    EXPECT_EQ(bytes_of(*submission), submitted);
    EXPECT_FALSE(parse_completed(submitted)) << "what a client says is not what an engine says";

    const auto told = bytes_of(draw.completed());
    ASSERT_TRUE(fits_ring(told));
    const auto completed = parse_completed(told);
    ASSERT_TRUE(completed);
    EXPECT_EQ(bytes_of(*completed), told);
    EXPECT_FALSE(parse_submission(told));
  }
}

// Each record has one encoding: changed bytes that are accepted mean another record.
TEST(IpcRecord, NoOtherBytesMeanTheSame) {
  for (const uint64_t seed : test::seeds(400)) {
    SCOPED_TRACE("MCAST_TEST_SEED=" + std::to_string(seed));
    Draw draw(seed);
    auto bytes = bytes_of(draw.submission());
    for (int i = 0; i < 20; i++) {
      auto other = bytes;
      other[draw.below(other.size())] ^= std::byte(1 + draw.below(255));
      if (draw.below(4) == 0) other.resize(draw.below(other.size() + 1));
      const auto read = parse_submission(other);
      if (read) {
        EXPECT_EQ(bytes_of(*read), other);
      }
    }
    bytes = bytes_of(draw.completed());
    for (int i = 0; i < 20; i++) {
      auto other = bytes;
      other[draw.below(other.size())] ^= std::byte(1 + draw.below(255));
      const auto read = parse_completed(other);
      if (read) {
        EXPECT_EQ(bytes_of(*read), other);
      }
    }
  }
}

TEST(IpcRecord, RunsStayWithinTheirSpace) {
  const auto accepted = [](const SliceRun& run) {
    PostRecord post;
    post.runs = {run};
    return parse_submission(bytes_of(Submission(post))).has_value();
  };
  constexpr uint64_t kEnd = UINT64_MAX;
  EXPECT_TRUE(accepted({Space::kNone, Role::kInput, 1, kEnd - 10, 10, 0}));
  EXPECT_FALSE(accepted({Space::kNone, Role::kInput, 1, kEnd - 10, 11, 0}));
  EXPECT_FALSE(accepted({Space::kNone, Role::kInput, 3, 0, 8, kEnd / 2 + 1}));
  EXPECT_FALSE(accepted({Space::kNone, Role::kInput, 3, kEnd - 100, 8, 50}));
  EXPECT_FALSE(accepted({Space::kNone, Role::kInput, 0, 0, 8, 8}));
  EXPECT_FALSE(accepted({Space::kNone, Role::kInput, kMostSlices + 1, 0, 8, 8}));
  EXPECT_FALSE(accepted({static_cast<Space>(2), Role::kInput, 1, 0, 8, 0}));
  EXPECT_FALSE(accepted({Space::kNone, static_cast<Role>(2), 1, 0, 8, 0}));
  PostRecord post;
  post.runs.assign(2, {Space::kNone, Role::kInput, kMostSlices, 0, 8, 8});
  EXPECT_FALSE(parse_submission(bytes_of(Submission(post)))) << "more slices than a group has";
}

// A message has one slice, which is an input of a send and an output of a receive.
TEST(IpcRecord, AMessageIsOneSliceOfItsOwnRole) {
  const auto accepted = [](auto change) {
    MessageRecord message;
    message.memory = {Space::kFirstArena, Role::kInput, 1, 4096, 100, 0};
    change(message);
    return parse_submission(bytes_of(Submission(message))).has_value();
  };
  const auto receives = [](MessageRecord& m) {
    m.receives = true;
    m.memory.role = Role::kOutput;
  };
  EXPECT_TRUE(accepted([](MessageRecord&) {}));
  EXPECT_TRUE(accepted([](MessageRecord& m) { m.staged = true; }));
  EXPECT_TRUE(accepted(receives));
  EXPECT_FALSE(accepted([](MessageRecord& m) { m.receives = true; })) << "into an input";
  EXPECT_FALSE(accepted([](MessageRecord& m) { m.memory.role = Role::kOutput; }));
  EXPECT_FALSE(accepted([&](MessageRecord& m) {
    receives(m);
    m.staged = true;
  })) << "nothing of it can be read";
  EXPECT_FALSE(accepted([](MessageRecord& m) { m.timeout = -1; }));
  EXPECT_FALSE(accepted([](MessageRecord& m) { m.memory.base = UINT64_MAX; }));
  EXPECT_FALSE(accepted([](MessageRecord& m) {
    m.memory.count = 2;
    m.memory.stride = 200;
  }));
  ReadyRecord ready{LaneId::kMulticast, 1, 2, 0, 3, true};
  EXPECT_FALSE(parse_submission(bytes_of(Submission(ready)))) << "of the other lane";
  ready.lane = LaneId::kReduce;
  EXPECT_TRUE(parse_submission(bytes_of(Submission(ready))));
  ready.input = 1;
  EXPECT_FALSE(parse_submission(bytes_of(Submission(ready)))) << "it has one input";
}

TEST(IpcRecord, SlicesAtEqualDistancesAreOneRun) {
  std::vector<SliceRun> runs;
  for (uint64_t i = 0; i < 5; i++) add_slice(runs, Space::kNone, Role::kOutput, 4096 + i * 64, 64);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].count, 5u);
  EXPECT_EQ(runs[0].stride, 64u);
  add_slice(runs, Space::kNone, Role::kOutput, 4096 + 5 * 64 + 8, 64);  // in a wrong place
  add_slice(runs, Space::kNone, Role::kOutput, 4096, 64);               // backwards
  add_slice(runs, Space::kNone, Role::kInput, 8192, 64);                // another role
  add_slice(runs, Space::kFirstArena, Role::kInput, 8192 + 64, 64);     // another space
  add_slice(runs, Space::kFirstArena, Role::kInput, 16384, 32);         // another length
  ASSERT_EQ(runs.size(), 6u);
  for (size_t i = 1; i < 6; i++) EXPECT_EQ(runs[i].count, 1u) << i;
  EXPECT_EQ(runs[1].stride, 0u);
  PostRecord post;
  post.runs = runs;
  EXPECT_TRUE(parse_submission(bytes_of(Submission(post))));
}

TEST(IpcRecord, LongTextsAreCut) {
  const auto done = parse_completed(
      bytes_of(Completed(DoneRecord{LaneId::kReduce, 1, 2, 3, 4, std::string(9000, 'x')})));
  ASSERT_TRUE(done);
  EXPECT_EQ(std::get<DoneRecord>(*done).text, std::string(kMostText, 'x'));
  PostRecord post;
  post.descriptor.name = std::string(100, 'n');
  const auto read = parse_submission(bytes_of(Submission(post)));
  ASSERT_TRUE(read);
  EXPECT_EQ(std::get<PostRecord>(*read).descriptor.name, std::string(kMostName, 'n'));
}

}  // namespace
}  // namespace mcast::ipc
