// Records of the two rings between an engine of the host and its client. A client submits the posts
// of its ranks; the engine completes them. Times are durations, never points in time: a container
// may have its own clock.
//
// Every record begins with length u32 (as the ring requires) and type u16. Parsers are total: they
// accept only one well-formed record of the client's (engine's) types, whatever the bytes.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/lane_id.h"
#include "base/types.h"
#include "host_engine/ipc/ring.h"
#include "wire/bytes.h"
#include "wire/descriptor.h"

namespace mcast::ipc {

// The address space of a slice's bytes: from kFirstArena on, an arena that both have mapped, by its
// number; kOwn: the client's own address space, which the engine copies; kNone: no bytes.
enum class Space : uint16_t { kNone = 0, kOwn = 1, kFirstArena = 16 };
enum class Role : uint16_t { kInput = 0, kOutput = 1 };

// Slices at equal distances: `count` of `length` bytes from `base` on, `stride` apart. The blocks
// of one tensor are one run.
struct SliceRun {
  Space space = Space::kNone;
  Role role = Role::kInput;
  uint32_t count = 1;
  uint64_t base = 0;  // offset in the space; kOwn: an address
  uint64_t length = 0, stride = 0;
};
inline constexpr size_t kRunBytes = 32;

// Most slices of a post: an input and an output for each rank of the widest group.
inline constexpr uint32_t kMostSlices = 2 * 65534;

// Appends a slice, to the last run if it fits there.
void add_slice(std::vector<SliceRun>& runs, Space space, Role role, uint64_t base, uint64_t length);

// Group::post(): the facts that the ranks agree on, this rank's memory, and the way of completion.
struct PostRecord {
  LaneId lane = LaneId::kMulticast;
  uint32_t group = 0;  // the engine's handle for this connection
  Sequence sequence = 0;
  wire::Descriptor descriptor;  // `name`: at most kMostName bytes, longer ones are truncated by put
  Nanos timeout = 0;
  double factor = 1;  // PREMUL_SUM
  // Further runs follow in PartRecords; the post takes effect with the last one.
  bool more = false;
  bool staged = false;  // no input can be read yet: ReadyRecords report how far
  std::vector<SliceRun> runs;
};
inline constexpr size_t kMostName = 31;
inline constexpr size_t kPostHead = 80;

// Further runs of the preceding post.
struct PartRecord {
  uint32_t group = 0;
  bool more = false;
  std::vector<SliceRun> runs;
};
inline constexpr size_t kPartHead = 16;

// Number of runs that fit into a record of either type.
inline constexpr size_t kRunsInPost = (kMaxRecord - kPostHead) / kRunBytes;
inline constexpr size_t kRunsInPart = (kMaxRecord - kPartHead) / kRunBytes;

// Reports how far the source may be read (Region::set_readable).
struct ReadyRecord {
  LaneId lane = LaneId::kMulticast;
  uint32_t group = 0;
  Sequence sequence = 0;
  uint32_t input = 0;  // its index
  uint64_t bytes = 0;
  // For a message instead, whose number is `sequence`: on the reduce lane, input 0.
  bool message = false;
};

// Group::post_message(). `number` differs from the client's other messages in flight in the group.
struct MessageRecord {
  uint32_t group = 0, number = 0;
  bool receives = false;
  bool staged = false;  // as PostRecord's; for a send
  Member peer = kNoMember;
  uint32_t tag = 0;
  Nanos timeout = 0;
  SliceRun memory;  // one slice: the input of a send, the output of a receive
};

using Submission = std::variant<PostRecord, PartRecord, ReadyRecord, MessageRecord>;

// An operation has ended; the engine no longer accesses its memory, unless it is `held`.
struct DoneRecord {
  LaneId lane = LaneId::kMulticast;
  uint32_t group = 0;
  Sequence sequence = 0;
  uint32_t contributors = 0;  // number of ranks whose inputs are in the result of a reduction
  uint8_t code = 0;           // mcast::Code
  std::string text;           // empty on success
  // Time before the end at which the first and the last byte of data moved; kNever: no data.
  Nanos first_byte = kNever, last_byte = kNever;
  // The operation failed while a page of its outputs was not available: a copy to it that is in
  // progress completes when the page becomes available.
  bool held = false;
};

// The same for a message.
struct MessageDoneRecord {
  uint32_t group = 0, number = 0;
  Member source = kNoMember;  // sender, for a successful receive
  uint8_t code = 0;
  std::string text;
  bool held = false;
};

// The group has failed.
struct FailedRecord {
  uint32_t group = 0;
  uint8_t code = 0;  // mcast::Code, not kOk
  std::string text;
};

using Completed = std::variant<DoneRecord, FailedRecord, MessageDoneRecord>;

inline constexpr size_t kMostText = 4000;  // bytes; longer ones are truncated by put

// The bytes of a record, its length first.
std::vector<std::byte> bytes_of(const Submission& record);
std::vector<std::byte> bytes_of(const Completed& record);

std::optional<Submission> parse_submission(ConstBytes record);
std::optional<Completed> parse_completed(ConstBytes record);

}  // namespace mcast::ipc
