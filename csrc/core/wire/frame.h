// Frames: the messages on streams. A fixed 24-byte little-endian header, then a body that depends
// on the type. Length comes from the stream's framing.
//
//   offset size field
//        0    4 checksum   CRC-32C of bytes 4.. to the end
//        4    1 type
//        5    1 lane       bit 0; others 0
//        6    2 member     the sender of this frame
//        8    8 group tag
//       16    4 sequence   op sequence; meaning depends on the type
//       20    4 argument   meaning depends on the type
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "wire/bytes.h"

namespace mcast::wire {

inline constexpr size_t kFrameHeader = 24;

enum class FrameType : uint8_t {
  kCredit = 1,  // up: argument descriptor; CreditEntry[]. Also says "I (my subtree) posted the op"
  kLimit = 2,   // down, towards roots: CreditEntry[]
  kFetch = 3,   // argument request id; Fetch
  kFetchData = 4,  // argument request id; root, first chunk, count, payload
  kNotHave = 5,    // argument request id; root, ranges; will not be answered by stream
  kComplete =
      6,  // up: all ops < sequence complete in my subtree; argument = first of hashes; u32[]
  kReleased = 7,  // down: all ops < sequence complete everywhere
  kPing = 8,  // reply at once; body (u32 hash): descriptor of op `sequence` as the sender has it
  kPong = 9,
  kAbort = 10,         // flooded: AbortNotice
  kPosition = 11,      // along the tree: argument = chunks sent; body root (u16), descriptor (u32)
  kDescribe = 12,      // descriptor of op `sequence` as the sender posted it (wire/descriptor.h);
                       // empty: send yours to member `argument`, which reported another hash
  kProbeStatus = 13,   // up: argument 1 = my whole subtree hears everyone
  kProbeDone = 14,     // down: argument 1 multicast, 0 ring; body: reason text
  kRingReady = 15,     // to the ring predecessor: I posted op `sequence`; argument descriptor
  kRingData = 16,      // to the ring successor: root (u16), offset (u64), payload
  kLeave = 17,         // flooded: member `argument` posts no operation from op `sequence` on
  kLate = 18,          // to member 0: op `sequence` passed its deadline here; body: its description
  kQuery = 19,         // flooded down by member 0: report your state of op `sequence`
  kWhere = 20,         // reply to member 0: argument = my next sequence
  kComing = 21,        // like NotHave, but the root multicasts these chunks again
  kDeaf = 22,          // to member 0: the sender recently lost nearly all multicast; body: text
  kSwitch = 23,        // down: start no operation until kSwitchAt; body: text
  kSwitchReady = 24,   // up: argument = most operations that any member of my subtree has started
  kSwitchAt = 25,      // down: operations from `sequence` on use the other path
  kReduceGrant = 26,   // to a contributor: argument descriptor; body u32: segments it may send now
  kReduceData = 27,    // to an owner: argument descriptor; ReduceData
  kReduceResult = 28,  // to the root of a reduce: argument descriptor; offset (u64) in the sender's
                       // block, payload
  kFetchGrant = 29,    // instead of kFetchData: argument request id; FetchGrant
  kReduceOffer = 30,   // to ranks of the same host: argument descriptor; ReduceOffer
  kReduceTaken = 31,   // to ranks of the same host: argument descriptor; your input has been read
  kSent = 32,          // along the tree: SentEntry[]
  kEarlyFetch = 33,  // to a root: Range[] of sequences; send what your small operations of them are
  kEarlyData = 34,   // the reply, one per operation: argument descriptor; as kFetchData
  kProbeJoined = 35,  // up: my whole subtree has joined; argument = what it knows of multicast, or
                      // 3: somebody is missing; body: text
  kProbeStart = 36,   // down: argument 1 = all have joined, probe; 0 = wait; body: who is missing
  // Aggregation; bodies in wire/aggregation.h.
  kAggOpen = 37,      // to a station: argument descriptor; AggOpen: the sender has posted the op
  kAggResult = 38,    // station to the segment's owner: argument descriptor; AggResult
  kAggDecline = 39,   // station to ranks: argument descriptor; AggDecline: not this op
  kAggStale = 40,     // station to member 0: argument descriptor; AggStale
  kAggGone = 41,      // flooded: AggGone
  kDivert = 42,       // owner to its contributors: argument descriptor; Divert
  kRoster = 43,       // down: StationRoster
  kRosterReach = 44,  // up: RosterReach, of my whole subtree
  kRosterStop = 45,   // down: start no more operations on this lane; body: version u32
  kRosterReady = 46,  // up: argument = most operations started in my subtree; body: version u32
  kRosterAt = 47,     // down: operations from `sequence` on use the roster; body: version u32
  // Results without late ranks; Descriptor, none, PartialResult (wire/aggregation.h).
  kExcuse = 48,   // to member 0: op `sequence` waits for too long; down: who has not called it?
                  // argument descriptor
  kExcused = 49,  // reply to member 0: argument 1 = it continues without my input, 0 = it does not
  kPartial = 50,  // down, and from ranks to stations: argument descriptor; op ends without these
  // Rates of the paths; `sequence` is the number of the test.
  kRateTrain = 51,  // to the ring successor: argument 1 = the last of the train; zero bytes
  kRate = 52,       // up: argument = least rate of a train in my subtree, KiB/s
  // Exchanges: all_to_all, gather, scatter.
  kExchangeGrant = 53,  // to a sender: argument descriptor; ExchangeGrant
  kExchangeData = 54,   // argument descriptor; ExchangeData
  // Point to point; `sequence` is the number of the message among those from one rank to the other.
  kMessage = 55,        // argument tag; MessageHead: a message begins
  kMessageGrant = 56,   // to its sender; body: end u64
  kMessageData = 57,    // MessageData: more of it
  kMessageCredit = 58,  // to the sender, `sequence` 0; MessageCredit
  // Source authentication.
  kBlockDigest = 59,  // root to each receiver: argument descriptor; digest of the root's block
};
inline constexpr uint8_t kFrameTypeMax = 59;
// Whether the frame moves a reduction's data, or asks for it.
constexpr bool is_reduction(FrameType type) {
  return type == FrameType::kReduceGrant || type == FrameType::kReduceData ||
         type == FrameType::kReduceResult || type == FrameType::kReduceOffer ||
         type == FrameType::kReduceTaken || type == FrameType::kDivert;
}
// The same for an exchange.
constexpr bool is_exchange(FrameType type) {
  return type == FrameType::kExchangeGrant || type == FrameType::kExchangeData;
}
// Returns true if it belongs to a message from one rank to one other.
constexpr bool is_message(FrameType type) {
  return type >= FrameType::kMessage && type <= FrameType::kMessageCredit;
}
// "credit", "fetch_data", ...
const char* frame_type_name(FrameType type) noexcept;

struct FrameHeader {
  FrameType type = FrameType::kPing;
  uint8_t lane = 0;
  Member member = 0;
  uint64_t group_tag = 0;
  Sequence sequence = 0;
  uint32_t argument = 0;
  bool operator==(const FrameHeader&) const = default;
};

// One root's stream as a subtree sees it: least values over the subtree's receivers.
struct CreditEntry {
  Member root = 0;
  Chunk high_water = 0;  // drained up to here (not contiguous)
  Chunk limit = 0;       // may be sent up to here, exclusive
  uint32_t lost = 0;     // chunks found lost so far: the most of any receiver
  bool operator==(const CreditEntry&) const = default;
};

struct AbortNotice {
  uint8_t code = 0;            // mcast::Code
  Member culprit = kNoMember;  // the culprit, if there is one
  Member origin = 0;           // the member that detected it
  uint8_t path = 0;            // mcast::Path as the sender knows it; at most kRing
  std::string text;            // at most kMaxAbortText bytes
};
inline constexpr size_t kMaxAbortText = 1000;
inline constexpr uint8_t kMostAbortPath = 2;

// Checks the structure only; returns false if it is too short, of unknown type, or has bad flags.
bool parse_frame(ConstBytes frame, FrameHeader& header) noexcept;
bool verify_frame(ConstBytes frame) noexcept;
// Writes the 24 header bytes; the checksum covers `body` too, which follows on the wire.
void write_frame_header(std::byte* out, const FrameHeader& header,
                        std::span<const ConstBytes> body) noexcept;

// Bodies. Each parse is total: false for anything but exactly one well-formed body.
void put_credit(Writer& out, std::span<const CreditEntry> entries);
bool parse_credit(ConstBytes body, std::vector<CreditEntry>& entries);

// All small operations of `root` below `end` have been sent.
struct SentEntry {
  Member root = 0;
  Sequence end = 0;
  bool operator==(const SentEntry&) const = default;
};
void put_sent(Writer& out, std::span<const SentEntry> entries);
bool parse_sent(ConstBytes body, std::vector<SentEntry>& entries);

void put_ranges(Writer& out, Member root, std::span<const ChunkRange> ranges);
bool parse_ranges(ConstBytes body, Member& root, std::vector<ChunkRange>& ranges);

// The missing parts of `root`'s block of the operation with this descriptor: a donor whose
// operation has another descriptor must not answer with its bytes.
struct Fetch {
  uint32_t descriptor = 0;
  Member root = 0;
  std::vector<ChunkRange> ranges;
};
void put_fetch(Writer& out, uint32_t descriptor, Member root, std::span<const ChunkRange> ranges);
bool parse_fetch(ConstBytes body, Fetch& out);

inline constexpr size_t kFetchDataHead = 10;
struct FetchData {
  Member root = 0;
  ChunkRange range;
  ConstBytes payload;
};
void put_fetch_data_head(Writer& out, Member root, ChunkRange range);
bool parse_fetch_data(ConstBytes body, FetchData& out) noexcept;

// The donor stores these chunks of `root`'s block in memory that the requester may read directly.
struct FetchGrant {
  Member root = 0;
  uint64_t address = 0;  // of chunk 0 of the block, in the donor's memory
  uint32_t key = 0;
  std::vector<ChunkRange> ranges;
};
void put_fetch_grant(Writer& out, const FetchGrant& grant);
bool parse_fetch_grant(ConstBytes body, FetchGrant& out);

void put_hashes(Writer& out, std::span<const uint32_t> hashes);
bool parse_hashes(ConstBytes body, std::vector<uint32_t>& hashes);

void put_abort(Writer& out, const AbortNotice& notice);
bool parse_abort(ConstBytes body, AbortNotice& notice);

struct RingData {
  Member root = 0;
  uint64_t offset = 0;
  ConstBytes payload;
};
// One segment of one rank's contribution to the receiver's block.
struct ReduceData {
  uint32_t segment = 0;
  double factor = 1;  // PREMUL_SUM: the contributor's
  ConstBytes payload;
};
inline constexpr size_t kReduceHead = 12;  // in front of the payload
inline constexpr size_t kReduceGrantSize = 4;
void put_reduce_head(Writer& out, uint32_t segment, double factor);
bool parse_reduce_data(ConstBytes body, ReduceData& out) noexcept;

// Location of the sender's input, for ranks of the same host. Addresses are of the sender's
// process.
struct ReduceOffer {
  uint64_t inputs = 0;  // of an array of u64: addresses of the inputs
  uint64_t live = 0;    // of a u64 that equals `cookie` while the inputs are the operation's
  uint64_t cookie = 0;
  double factor = 1;  // PREMUL_SUM: the sender's
};
inline constexpr size_t kReduceOfferSize = 32;
void put_reduce_offer(Writer& out, const ReduceOffer& offer);
bool parse_reduce_offer(ConstBytes body, ReduceOffer& out) noexcept;

// A piece of the sender's block for the receiver.
struct ExchangeData {
  uint64_t total = 0;  // bytes of the block
  uint64_t offset = 0;
  ConstBytes payload;
};
inline constexpr size_t kExchangeHead = 16;  // in front of the payload
// How many bytes of its block for this frame's sender the receiver may send.
struct ExchangeGrant {
  uint64_t total = 0;  // bytes of the block
  uint64_t end = 0;
};
inline constexpr size_t kExchangeGrantSize = 16;
void put_exchange_grant(Writer& out, const ExchangeGrant& grant);
bool parse_exchange_grant(ConstBytes body, ExchangeGrant& out) noexcept;
void put_exchange_head(Writer& out, uint64_t total, uint64_t offset);
bool parse_exchange_data(ConstBytes body, ExchangeData& out) noexcept;

// The start of a message, and a later piece of it.
struct MessageHead {
  uint64_t total = 0;  // bytes of the message
  ConstBytes payload;  // its first bytes, or none
};
struct MessageData {
  uint64_t offset = 0;
  ConstBytes payload;
};
inline constexpr size_t kMessageHead = 8;  // in front of the payload, of both
void put_message_head(Writer& out, uint64_t total_or_offset);
bool parse_message_head(ConstBytes body, MessageHead& out) noexcept;
bool parse_message_data(ConstBytes body, MessageData& out) noexcept;
void put_message_grant(Writer& out, uint64_t end);
bool parse_message_grant(ConstBytes body, uint64_t& end) noexcept;
// Credit for the receiver's messages, as totals since the group was made.
struct MessageCredit {
  uint64_t heads = 0;  // taken by receives
  uint64_t bytes = 0;  // unasked bytes of them
};
void put_message_credit(Writer& out, const MessageCredit& credit);
bool parse_message_credit(ConstBytes body, MessageCredit& out) noexcept;

// SHA-256 of the sender's block (crypto/block_digest.h), which is written as it is.
bool parse_block_digest(ConstBytes body, std::array<std::byte, 32>& digest) noexcept;

void put_ring_head(Writer& out, Member root, uint64_t offset);
bool parse_ring_data(ConstBytes body, RingData& out) noexcept;

}  // namespace mcast::wire
