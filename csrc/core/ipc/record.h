// Records of the two rings between an engine of the host and its client. A client submits what its
// ranks post; the engine completes it. Times are durations, never points in time: a container may
// have a clock of its own.
//
// Every record begins with length u32 (of the ring) and type u16. Parsers are total: nothing but
// one well-formed record of the client's (engine's) types is accepted, whatever the bytes.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/lane_id.h"
#include "base/types.h"
#include "ipc/ring.h"
#include "wire/bytes.h"
#include "wire/descriptor.h"

namespace mcast::ipc {

// Where the bytes of a slice are: from kFirstArena on an arena that both have mapped, by its
// number; kOwn: in the client's own address space, which the engine copies; kNone: it has none.
enum class Space : uint16_t { kNone = 0, kOwn = 1, kFirstArena = 16 };
enum class Role : uint16_t { kInput = 0, kOutput = 1 };

// Slices that lie at equal distances: `count` of `length` bytes from `base` on, a `stride` apart.
// Blocks of one tensor are one run.
struct SliceRun {
  Space space = Space::kNone;
  Role role = Role::kInput;
  uint32_t count = 1;
  uint64_t base = 0;  // bytes from the start of the space; kOwn: an address
  uint64_t length = 0, stride = 0;
};
inline constexpr size_t kRunBytes = 32;

// Slices of a post, at most: an input and an output for each rank of the widest group.
inline constexpr uint32_t kMostSlices = 2 * 65534;

// Adds a slice behind those that there are, to the last run where it fits.
void add_slice(std::vector<SliceRun>& runs, Space space, Role role, uint64_t base, uint64_t length);

// Group::post(): what the ranks agree on, this rank's memory, and how it is to be told.
struct PostRecord {
  LaneId lane = LaneId::kMulticast;
  uint32_t group = 0;  // the engine's handle of this connection
  Sequence sequence = 0;
  wire::Descriptor descriptor;  // `name`: at most kMostName bytes, longer ones are cut by put
  Nanos timeout = 0;
  double factor = 1;  // PREMUL_SUM
  // Further runs follow in Parts; the post counts when the last one is there.
  bool more = false;
  bool staged = false;  // no input can be read yet: Ready says how far
  std::vector<SliceRun> runs;
};
inline constexpr size_t kMostName = 31;
inline constexpr size_t kPostHead = 80;

// Further runs of the post before it.
struct PartRecord {
  uint32_t group = 0;
  bool more = false;
  std::vector<SliceRun> runs;
};
inline constexpr size_t kPartHead = 16;

// As many runs as fit a record of either type.
inline constexpr size_t kRunsInPost = (kMaxRecord - kPostHead) / kRunBytes;
inline constexpr size_t kRunsInPart = (kMaxRecord - kPartHead) / kRunBytes;

// The source may be read so far (Region::set_readable).
struct ReadyRecord {
  LaneId lane = LaneId::kMulticast;
  uint32_t group = 0;
  Sequence sequence = 0;
  uint32_t input = 0;  // its index
  uint64_t bytes = 0;
  // It is a message's, whose number is `sequence`: on the reduce lane, of input 0.
  bool message = false;
};

// Group::post_message(). `number` tells it from the client's other messages in flight in the group.
struct MessageRecord {
  uint32_t group = 0, number = 0;
  bool receives = false;
  bool staged = false;  // as PostRecord's; of a send
  Member peer = kNoMember;
  uint32_t tag = 0;
  Nanos timeout = 0;
  SliceRun memory;  // one slice: of a send an input, of a receive an output
};

using Submission = std::variant<PostRecord, PartRecord, ReadyRecord, MessageRecord>;

// An operation has ended; the engine touches its memory no more, unless it is `held`.
struct DoneRecord {
  LaneId lane = LaneId::kMulticast;
  uint32_t group = 0;
  Sequence sequence = 0;
  uint32_t contributors = 0;  // whose inputs are in the result of a reduction
  uint8_t code = 0;           // mcast::Code
  std::string text;           // empty if it went well
  // How long before the end the first and the last byte of data moved; kNever: none did.
  Nanos first_byte = kNever, last_byte = kNever;
  // It has failed while a page of its outputs did not come: what is copied there at that moment
  // comes when the page does.
  bool held = false;
};

// The same of a message.
struct MessageDoneRecord {
  uint32_t group = 0, number = 0;
  Member source = kNoMember;  // of a receive that went well: who has sent it
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

inline constexpr size_t kMostText = 4000;  // bytes; longer ones are cut by put

// The bytes of a record, its length first.
std::vector<std::byte> bytes_of(const Submission& record);
std::vector<std::byte> bytes_of(const Completed& record);

std::optional<Submission> parse_submission(ConstBytes record);
std::optional<Completed> parse_completed(ConstBytes record);

}  // namespace mcast::ipc
