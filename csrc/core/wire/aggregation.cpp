// Encoding and total parsing, field by field. An accepted body has only one encoding: reserved bits
// are zero, ranges ascend and do not touch, texts are within their limits, so writing it again
// gives the same bytes.
#include "wire/aggregation.h"

#include <algorithm>
#include <bit>

#include "wire/frame.h"

namespace mcast::wire {
namespace {

bool take_text(Reader& in, std::string& text) {
  if (!in.ok() || in.remaining() > kMaxAggText) return false;
  text = std::string(in.rest_text());
  return true;
}

// Writes a text of at most 255 bytes after its length.
void put_short_text(Writer& out, std::string_view text) {
  text = text.substr(0, 255);
  out.put<uint8_t>(static_cast<uint8_t>(text.size()));
  out.put_text(text);
}

std::string take_short_text(Reader& in) {
  std::string text(in.get<uint8_t>(), 0);
  for (char& c : text) c = static_cast<char>(in.get<uint8_t>());
  return text;
}

// Eight stations to a byte, the lowest bit first.
void put_bits(Writer& out, const std::vector<bool>& bits) {
  for (size_t at = 0; at < bits.size(); at += 8) {
    unsigned byte = 0;
    for (size_t i = at; i < std::min(at + 8, bits.size()); i++) byte |= bits[i] << (i - at);
    out.put<uint8_t>(static_cast<uint8_t>(byte));
  }
}

bool take_bits(Reader& in, size_t count, std::vector<bool>& bits) {
  bits.clear();
  for (size_t at = 0; at < count; at += 8) {
    const unsigned byte = in.get<uint8_t>();
    const size_t here = std::min<size_t>(8, count - at);
    if (byte >> here != 0) return false;
    for (size_t i = 0; i < here; i++) bits.push_back((byte >> i & 1u) != 0);
  }
  return in.ok();
}

}  // namespace

void put_agg_open(Writer& out, const AggOpen& open) {
  const Descriptor& d = open.descriptor;
  out.put<uint32_t>(open.roster);
  out.put<uint8_t>(static_cast<uint8_t>(d.kind));
  out.put<uint8_t>(d.element);
  out.put<uint8_t>(d.reduction);
  out.put<uint64_t>(d.bytes);
  out.put_text(std::string_view(d.name).substr(0, 64));
}

bool parse_agg_open(ConstBytes body, AggOpen& out) {
  Reader in(body);
  Descriptor& d = out.descriptor;
  out.roster = in.get<uint32_t>();
  const auto kind = in.get<uint8_t>();
  d.element = in.get<uint8_t>();
  d.reduction = in.get<uint8_t>();
  d.root = kNoMember;
  d.bytes = in.get<uint64_t>();
  if (!in.ok() || kind < 1 || kind > kKindMax || in.remaining() > 64) return false;
  d.kind = static_cast<Kind>(kind);
  d.name = std::string(in.rest_text());
  return true;
}

void put_agg_result_head(Writer& out, uint32_t number, ResultForm form, uint16_t contributors) {
  out.put<uint32_t>(number);
  out.put<uint8_t>(static_cast<uint8_t>(form));
  out.put<uint16_t>(contributors);
}

bool parse_agg_result(ConstBytes body, AggResult& out) noexcept {
  Reader in(body);
  out.number = in.get<uint32_t>();
  const auto form = in.get<uint8_t>();
  out.contributors = in.get<uint16_t>();
  if (!in.ok() || form > static_cast<uint8_t>(ResultForm::kPartial) || in.remaining() == 0) {
    return false;
  }
  out.form = static_cast<ResultForm>(form);
  out.payload = in.rest();
  return true;
}

void put_agg_decline(Writer& out, const AggDecline& decline) {
  out.put<uint8_t>(decline.code);
  out.put_text(std::string_view(decline.text).substr(0, kMaxAggText));
}

bool parse_agg_decline(ConstBytes body, AggDecline& out) {
  Reader in(body);
  out.code = in.get<uint8_t>();
  return take_text(in, out.text);
}

void put_agg_wait(Writer& out, const AggWait& wait) {
  out.put<uint32_t>(wait.number);
  out.put<uint32_t>(wait.age_ms);
  for (const uint64_t word : wait.missing) out.put<uint64_t>(word);
}

bool parse_agg_wait(ConstBytes body, AggWait& out) {
  Reader in(body);
  out.number = in.get<uint32_t>();
  out.age_ms = in.get<uint32_t>();
  out.missing.clear();
  if (!in.ok() || in.remaining() % 8 != 0) return false;
  while (in.remaining() > 0) out.missing.push_back(in.get<uint64_t>());
  return true;
}

void put_agg_gone(Writer& out, const AggGone& gone) {
  out.put<uint32_t>(gone.roster);
  out.put<uint16_t>(gone.station);
  out.put_text(std::string_view(gone.text).substr(0, kMaxAggText));
}

bool parse_agg_gone(ConstBytes body, AggGone& out) {
  Reader in(body);
  out.roster = in.get<uint32_t>();
  out.station = in.get<uint16_t>();
  return take_text(in, out.text);
}

void put_divert(Writer& out, Member station, std::span<const ChunkRange> segments) {
  put_ranges(out, station, segments);
}

bool parse_divert(ConstBytes body, Divert& out) {
  if (!parse_ranges(body, out.station, out.segments) || out.segments.empty()) return false;
  return std::adjacent_find(out.segments.begin(), out.segments.end(),
                            [](const ChunkRange& a, const ChunkRange& b) {
                              return a.end >= b.first;
                            }) == out.segments.end();
}

bool PartialResult::fits(uint32_t ranks) const noexcept {
  if (excused.size() != (ranks + 63) / 64) return false;
  uint32_t gone = 0;
  for (const uint64_t word : excused) gone += static_cast<uint32_t>(std::popcount(word));
  const uint32_t rest = ranks % 64;
  if (rest != 0 && excused.back() >> rest != 0) return false;
  return gone > 0 && contributors > 0 && gone + contributors == ranks;
}

std::vector<Member> PartialResult::ranks() const {
  std::vector<Member> out;
  for (size_t m = 0; m < excused.size() * 64; m++) {
    if (is_excused(static_cast<Member>(m))) out.push_back(static_cast<Member>(m));
  }
  return out;
}

void put_partial(Writer& out, const PartialResult& partial) {
  out.put<uint16_t>(partial.contributors);
  for (const uint64_t word : partial.excused) out.put<uint64_t>(word);
}

bool parse_partial(ConstBytes body, PartialResult& out) {
  Reader in(body);
  out.contributors = in.get<uint16_t>();
  out.excused.clear();
  if (!in.ok() || in.remaining() == 0 || in.remaining() % 8 != 0) return false;
  while (in.remaining() > 0) out.excused.push_back(in.get<uint64_t>());
  return true;
}

void put_roster(Writer& out, const StationRoster& roster) {
  out.put<uint32_t>(roster.version);
  out.put<uint8_t>(roster.resting ? 1 : 0);
  for (const StationEntry& s : roster.stations) {
    out.put<uint64_t>(s.process);
    out.put<uint64_t>(s.uid);
    out.put<uint32_t>(s.capacity);
    out.put<uint16_t>(s.port);
    put_short_text(out, s.host);
    put_short_text(out, s.rack);
    const bool keyed = s.key != decltype(s.key){};
    out.put<uint8_t>(keyed ? 1 : 0);
    for (const std::byte b : s.key) {
      if (keyed) out.put<uint8_t>(static_cast<uint8_t>(b));
    }
  }
}

bool parse_roster(ConstBytes body, StationRoster& out) {
  Reader in(body);
  out.version = in.get<uint32_t>();
  const auto resting = in.get<uint8_t>();
  out.resting = resting == 1;
  out.stations.clear();
  if (resting > 1) return false;
  while (in.remaining() > 0) {
    StationEntry s;
    s.process = in.get<uint64_t>();
    s.uid = in.get<uint64_t>();
    s.capacity = in.get<uint32_t>();
    s.port = in.get<uint16_t>();
    s.host = take_short_text(in);
    s.rack = take_short_text(in);
    const auto keyed = in.get<uint8_t>();
    for (std::byte& b : s.key) {
      if (keyed == 1) b = static_cast<std::byte>(in.get<uint8_t>());
    }
    if (keyed > 1 || (keyed == 1 && s.key == decltype(s.key){})) return false;
    if (!in.ok() || s.host.empty() || out.stations.size() == kMostStations) return false;
    out.stations.push_back(std::move(s));
  }
  return in.done();
}

void put_roster_reach(Writer& out, const RosterReach& reach) {
  out.put<uint32_t>(reach.version);
  out.put<uint16_t>(static_cast<uint16_t>(reach.connected.size()));
  put_bits(out, reach.connected);
  put_bits(out, reach.heard);
}

bool parse_roster_reach(ConstBytes body, RosterReach& out) {
  Reader in(body);
  out.version = in.get<uint32_t>();
  const size_t stations = in.get<uint16_t>();
  if (!in.ok() || stations > kMostStations) return false;
  return take_bits(in, stations, out.connected) && take_bits(in, stations, out.heard) && in.done();
}

bool parse_roster_version(ConstBytes body, uint32_t& version) noexcept {
  Reader in(body);
  version = in.get<uint32_t>();
  return in.done();
}

}  // namespace mcast::wire
