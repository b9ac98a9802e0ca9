// Encoding and total parsing of stream frames. Streams deliver intact framing, yet the kernel's TCP
// checksum is weak and absent on virtual links, so every frame carries its own CRC-32C; a body is
// accepted only when it has exactly the length its type implies.
#include "wire/frame.h"

#include <algorithm>
#include <bit>

#include "base/checksum.h"

namespace mcast::wire {

const char* frame_type_name(FrameType type) noexcept {
  static constexpr const char* kNames[] = {
      "none",         "credit",        "limit",        "fetch",          "fetch_data",
      "not_have",     "complete",      "released",     "ping",           "pong",
      "abort",        "position",      "describe",     "probe_status",   "probe_done",
      "ring_ready",   "ring_data",     "leave",        "late",           "query",
      "where",        "coming",        "deaf",         "switch",         "switch_ready",
      "switch_at",    "reduce_grant",  "reduce_data",  "reduce_result",  "fetch_grant",
      "reduce_offer", "reduce_taken",  "sent",         "early_fetch",    "early_data",
      "probe_joined", "probe_start",   "agg_open",     "agg_result",     "agg_decline",
      "agg_stale",    "agg_gone",      "divert",       "roster",         "roster_reach",
      "roster_line",  "roster_ready",  "roster_at",    "excuse",         "excused",
      "partial",      "rate_train",    "rate",         "exchange_grant", "exchange_data",
      "message",      "message_grant", "message_data", "message_credit", "block_digest"};
  const auto index = static_cast<uint8_t>(type);
  return index <= kFrameTypeMax ? kNames[index] : "unknown";
}

bool parse_frame(ConstBytes frame, FrameHeader& header) noexcept {
  if (frame.size() < kFrameHeader) return false;
  const std::byte* p = frame.data();
  const auto type = load<uint8_t>(p + 4);
  const auto lane = load<uint8_t>(p + 5);
  if (type == 0 || type > kFrameTypeMax || lane > 1) return false;
  header.type = static_cast<FrameType>(type);
  header.lane = lane;
  header.member = load<uint16_t>(p + 6);
  header.group_tag = load<uint64_t>(p + 8);
  header.sequence = load<uint32_t>(p + 16);
  header.argument = load<uint32_t>(p + 20);
  return true;
}

bool verify_frame(ConstBytes frame) noexcept {
  return load<uint32_t>(frame.data()) == crc32c(frame.subspan(4));
}

void write_frame_header(std::byte* out, const FrameHeader& header,
                        std::span<const ConstBytes> body) noexcept {
  store<uint8_t>(out + 4, static_cast<uint8_t>(header.type));
  store<uint8_t>(out + 5, header.lane);
  store<uint16_t>(out + 6, header.member);
  store<uint64_t>(out + 8, header.group_tag);
  store<uint32_t>(out + 16, header.sequence);
  store<uint32_t>(out + 20, header.argument);
  uint32_t sum = crc32c(ConstBytes(out + 4, kFrameHeader - 4));
  for (const ConstBytes part : body) sum = crc32c(part, sum);
  store<uint32_t>(out, sum);
}

void put_credit(Writer& out, std::span<const CreditEntry> entries) {
  for (const CreditEntry& e : entries) {
    out.put<uint16_t>(e.root);
    out.put<uint32_t>(e.high_water);
    out.put<uint32_t>(e.limit);
    out.put<uint32_t>(e.lost);
  }
}

bool parse_credit(ConstBytes body, std::vector<CreditEntry>& entries) {
  entries.clear();
  if (body.size() % 14 != 0) return false;
  Reader in(body);
  while (in.remaining() > 0) {
    CreditEntry e;
    e.root = in.get<uint16_t>();
    e.high_water = in.get<uint32_t>();
    e.limit = in.get<uint32_t>();
    e.lost = in.get<uint32_t>();
    entries.push_back(e);
  }
  return in.done();
}

void put_sent(Writer& out, std::span<const SentEntry> entries) {
  for (const SentEntry& e : entries) {
    out.put<uint16_t>(e.root);
    out.put<uint32_t>(e.end);
  }
}

bool parse_sent(ConstBytes body, std::vector<SentEntry>& entries) {
  entries.clear();
  if (body.size() % 6 != 0) return false;
  Reader in(body);
  while (in.remaining() > 0) {
    SentEntry e;
    e.root = in.get<uint16_t>();
    e.end = in.get<uint32_t>();
    entries.push_back(e);
  }
  return in.done();
}

void put_ranges(Writer& out, Member root, std::span<const ChunkRange> ranges) {
  out.put<uint16_t>(root);
  for (const ChunkRange& r : ranges) {
    out.put<uint32_t>(r.first);
    out.put<uint32_t>(r.end);
  }
}

bool parse_ranges(ConstBytes body, Member& root, std::vector<ChunkRange>& ranges) {
  ranges.clear();
  if (body.size() < 2 || (body.size() - 2) % 8 != 0) return false;
  Reader in(body);
  root = in.get<uint16_t>();
  while (in.remaining() > 0) {
    ChunkRange r;
    r.first = in.get<uint32_t>();
    r.end = in.get<uint32_t>();
    if (r.first >= r.end) return false;
    ranges.push_back(r);
  }
  return in.done();
}

void put_fetch(Writer& out, uint32_t descriptor, Member root, std::span<const ChunkRange> ranges) {
  out.put<uint32_t>(descriptor);
  put_ranges(out, root, ranges);
}

bool parse_fetch(ConstBytes body, Fetch& out) {
  if (body.size() < 4) return false;
  out.descriptor = load<uint32_t>(body.data());
  return parse_ranges(body.subspan(4), out.root, out.ranges);
}

void put_fetch_data_head(Writer& out, Member root, ChunkRange range) {
  out.put<uint16_t>(root);
  out.put<uint32_t>(range.first);
  out.put<uint32_t>(range.end);
}

bool parse_fetch_data(ConstBytes body, FetchData& out) noexcept {
  Reader in(body);
  out.root = in.get<uint16_t>();
  out.range.first = in.get<uint32_t>();
  out.range.end = in.get<uint32_t>();
  if (!in.ok() || out.range.first >= out.range.end) return false;
  out.payload = in.rest();
  return true;
}

void put_fetch_grant(Writer& out, const FetchGrant& grant) {
  out.put<uint64_t>(grant.address);
  out.put<uint32_t>(grant.key);
  put_ranges(out, grant.root, grant.ranges);
}

bool parse_fetch_grant(ConstBytes body, FetchGrant& out) {
  Reader in(body);
  out.address = in.get<uint64_t>();
  out.key = in.get<uint32_t>();
  return in.ok() && parse_ranges(in.rest(), out.root, out.ranges);
}

void put_hashes(Writer& out, std::span<const uint32_t> hashes) {
  for (const uint32_t h : hashes) out.put<uint32_t>(h);
}

bool parse_hashes(ConstBytes body, std::vector<uint32_t>& hashes) {
  hashes.clear();
  if (body.size() % 4 != 0) return false;
  Reader in(body);
  while (in.remaining() > 0) hashes.push_back(in.get<uint32_t>());
  return in.done();
}

void put_abort(Writer& out, const AbortNotice& notice) {
  out.put<uint8_t>(notice.code);
  out.put<uint16_t>(notice.culprit);
  out.put<uint16_t>(notice.origin);
  out.put<uint8_t>(notice.path);
  out.put_text(std::string_view(notice.text).substr(0, kMaxAbortText));
}

bool parse_abort(ConstBytes body, AbortNotice& notice) {
  Reader in(body);
  notice.code = in.get<uint8_t>();
  notice.culprit = in.get<uint16_t>();
  notice.origin = in.get<uint16_t>();
  notice.path = in.get<uint8_t>();
  if (!in.ok() || notice.path > kMostAbortPath || in.remaining() > kMaxAbortText) return false;
  notice.text = std::string(in.rest_text());
  return true;
}

void put_reduce_head(Writer& out, uint32_t segment, double factor) {
  out.put<uint32_t>(segment);
  out.put<uint64_t>(std::bit_cast<uint64_t>(factor));
}

bool parse_reduce_data(ConstBytes body, ReduceData& out) noexcept {
  Reader in(body);
  out.segment = in.get<uint32_t>();
  out.factor = std::bit_cast<double>(in.get<uint64_t>());
  if (!in.ok() || in.remaining() == 0) return false;
  out.payload = in.rest();
  return true;
}

void put_reduce_offer(Writer& out, const ReduceOffer& offer) {
  out.put<uint64_t>(offer.inputs);
  out.put<uint64_t>(offer.live);
  out.put<uint64_t>(offer.cookie);
  out.put<uint64_t>(std::bit_cast<uint64_t>(offer.factor));
}

bool parse_reduce_offer(ConstBytes body, ReduceOffer& out) noexcept {
  Reader in(body);
  out.inputs = in.get<uint64_t>();
  out.live = in.get<uint64_t>();
  out.cookie = in.get<uint64_t>();
  out.factor = std::bit_cast<double>(in.get<uint64_t>());
  return in.done();
}

void put_exchange_grant(Writer& out, const ExchangeGrant& grant) {
  out.put<uint64_t>(grant.total);
  out.put<uint64_t>(grant.end);
}

bool parse_exchange_grant(ConstBytes body, ExchangeGrant& out) noexcept {
  Reader in(body);
  out.total = in.get<uint64_t>();
  out.end = in.get<uint64_t>();
  return in.done();
}

void put_exchange_head(Writer& out, uint64_t total, uint64_t offset) {
  out.put<uint64_t>(total);
  out.put<uint64_t>(offset);
}

bool parse_exchange_data(ConstBytes body, ExchangeData& out) noexcept {
  if (body.size() < kExchangeHead) return false;
  Reader in(body);
  out.total = in.get<uint64_t>();
  out.offset = in.get<uint64_t>();
  out.payload = in.rest();
  return true;
}

void put_message_head(Writer& out, uint64_t total_or_offset) { out.put<uint64_t>(total_or_offset); }

bool parse_message_head(ConstBytes body, MessageHead& out) noexcept {
  Reader in(body);
  out.total = in.get<uint64_t>();
  if (!in.ok() || in.remaining() > out.total) return false;
  out.payload = in.rest();
  return true;
}

bool parse_message_data(ConstBytes body, MessageData& out) noexcept {
  Reader in(body);
  out.offset = in.get<uint64_t>();
  if (!in.ok() || in.remaining() == 0) return false;
  out.payload = in.rest();
  return true;
}

void put_message_grant(Writer& out, uint64_t end) { out.put<uint64_t>(end); }

bool parse_message_grant(ConstBytes body, uint64_t& end) noexcept {
  Reader in(body);
  end = in.get<uint64_t>();
  return in.done();
}

void put_message_credit(Writer& out, const MessageCredit& credit) {
  out.put<uint64_t>(credit.heads);
  out.put<uint64_t>(credit.bytes);
}

bool parse_message_credit(ConstBytes body, MessageCredit& out) noexcept {
  Reader in(body);
  out.heads = in.get<uint64_t>();
  out.bytes = in.get<uint64_t>();
  return in.done();
}

bool parse_block_digest(ConstBytes body, std::array<std::byte, 32>& digest) noexcept {
  if (body.size() != digest.size()) return false;
  std::copy(body.begin(), body.end(), digest.begin());
  return true;
}

void put_ring_head(Writer& out, Member root, uint64_t offset) {
  out.put<uint16_t>(root);
  out.put<uint64_t>(offset);
}

bool parse_ring_data(ConstBytes body, RingData& out) noexcept {
  Reader in(body);
  out.root = in.get<uint16_t>();
  out.offset = in.get<uint64_t>();
  if (!in.ok() || in.remaining() == 0) return false;
  out.payload = in.rest();
  return true;
}

}  // namespace mcast::wire
