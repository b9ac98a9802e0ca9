// Bodies of the frames between ranks and stations, and of those by which ranks agree on a roster. A
// station is one thread of an aggregator that folds for one group, as member P, P + 1, ... of it. A
// station's list is the numbered sequence of segments assigned to it; contributions travel as
// ReduceGrant and ReduceData (wire/frame.h), with numbers in the list instead of the block.
//
// Each parse is total: false for anything but exactly one well-formed body.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/types.h"
#include "wire/bytes.h"
#include "wire/descriptor.h"

namespace mcast::wire {

// A rank has posted an operation whose segments are assigned according to roster version `roster`.
// Contains the descriptor except for the root, since no such operation has one.
struct AggOpen {
  uint32_t roster = 0;
  Descriptor descriptor;
};
void put_agg_open(Writer& out, const AggOpen& open);
bool parse_agg_open(ConstBytes body, AggOpen& out);

// Form of the result of folding a segment.
enum class ResultForm : uint8_t {
  kFinal = 0,  // divided and rounded: elements
  // Without the owner's contribution: accumulator elements (float32 for 16-bit floats).
  kPartial = 1,
};
struct AggResult {
  uint32_t number = 0;  // in the station's list
  ResultForm form = ResultForm::kFinal;
  uint16_t contributors = 0;
  ConstBytes payload;  // not empty
};
inline constexpr size_t kAggResultHead = 7;  // in front of the payload
void put_agg_result_head(Writer& out, uint32_t number, ResultForm form, uint16_t contributors);
bool parse_agg_result(ConstBytes body, AggResult& out) noexcept;

inline constexpr size_t kMaxAggText = 1000;

// The station does not fold this operation; the owners do.
struct AggDecline {
  uint8_t code = 0;  // mcast::Code
  std::string text;  // at most kMaxAggText bytes; longer ones are truncated by put
};
void put_agg_decline(Writer& out, const AggDecline& decline);
bool parse_agg_decline(ConstBytes body, AggDecline& out);

// The block that a station waits for: in AggStale the one without a contribution for the longest
// time, in a Pong its oldest one. Bit c of `missing`: contributor c.
struct AggWait {
  uint32_t number = 0;  // in the station's list
  uint32_t age_ms = 0;  // since the block's last contribution
  std::vector<uint64_t> missing;
};
void put_agg_wait(Writer& out, const AggWait& wait);
bool parse_agg_wait(ConstBytes body, AggWait& out);

// A rank has lost `station` (a member number) of roster version `roster`.
struct AggGone {
  uint32_t roster = 0;
  Member station = 0;
  std::string text;  // at most kMaxAggText bytes; longer ones are truncated by put
};
void put_agg_gone(Writer& out, const AggGone& gone);
bool parse_agg_gone(ConstBytes body, AggGone& out);

// These segments of the sender's shard, assigned to `station`, must be contributed to the sender
// itself, after its own list. Ranges: at least one, ascending, not adjacent.
struct Divert {
  Member station = 0;
  std::vector<ChunkRange> segments;
};
inline constexpr size_t kDivertHead = 2;  // in front of the ranges, 8 bytes each
void put_divert(Writer& out, Member station, std::span<const ChunkRange> segments);
bool parse_divert(ConstBytes body, Divert& out);

// An operation ends without the inputs of some ranks: bits of these ranks, and the number of ranks
// that remain.
struct PartialResult {
  uint16_t contributors = 0;      // 1 at least
  std::vector<uint64_t> excused;  // one word at least

  bool is_excused(Member m) const {
    return m / 64u < excused.size() && (excused[m / 64u] >> (m % 64u) & 1u) != 0;
  }
  // Returns true if the frame suits a group of `ranks` ranks, each of which contributes by itself.
  bool fits(uint32_t ranks) const noexcept;
  std::vector<Member> ranks() const;  // the excused ones, ascending
  bool operator==(const PartialResult&) const = default;
};
void put_partial(Writer& out, const PartialResult& partial);
bool parse_partial(ConstBytes body, PartialResult& out);

// Most stations of a roster.
inline constexpr size_t kMostStations = 256;
struct StationEntry {
  uint64_t process = 0;   // uid of the aggregator's process
  uint64_t uid = 0;       // of the station's stream endpoint
  uint32_t capacity = 0;  // 1/65536 of a rank's link
  uint16_t port = 0;
  std::string host;                 // 1 to 255 bytes
  std::string rack;                 // at most 255 bytes; empty: none
  std::array<std::byte, 32> key{};  // of its endpoint, in a guarded group; zeros: not guarded
  bool operator==(const StationEntry&) const = default;
};
struct StationRoster {
  uint32_t version = 0;
  bool resting = false;  // the stations stay connected and fold nothing
  std::vector<StationEntry> stations;
};
void put_roster(Writer& out, const StationRoster& roster);
bool parse_roster(ConstBytes body, StationRoster& out);

// Stations of a roster to which all ranks of a subtree are connected, and whose multicast they
// receive.
struct RosterReach {
  uint32_t version = 0;
  std::vector<bool> connected, heard;  // by station, as many each
};
void put_roster_reach(Writer& out, const RosterReach& reach);
bool parse_roster_reach(ConstBytes body, RosterReach& out);

// For RosterStop, RosterReady and RosterAt: reads the version.
bool parse_roster_version(ConstBytes body, uint32_t& version) noexcept;

}  // namespace mcast::wire
