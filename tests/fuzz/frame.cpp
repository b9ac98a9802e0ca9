// Frames and all their bodies: a body that a parser accepts is written back as the same bytes.
// Every parser gets every body, whatever the frame's type is.
#include <array>
#include <vector>

#include "fuzz.h"
#include "transport/fault_classifier.h"
#include "wire/descriptor.h"
#include "wire/frame.h"

using namespace mcast;
using fuzz::require;

namespace {

// Writes with `put` and compares.
template <typename Put>
void same(ConstBytes body, ConstBytes payload, Put put) {
  wire::Writer out;
  put(out);
  for (const std::byte b : payload) out.put<uint8_t>(static_cast<uint8_t>(b));
  require(fuzz::equal(out.bytes(), body), "a body is written as it was read");
}

void check_lists(ConstBytes body) {
  std::vector<wire::CreditEntry> credit;
  if (wire::parse_credit(body, credit)) same(body, {}, [&](auto& o) { put_credit(o, credit); });
  std::vector<wire::SentEntry> sent;
  if (wire::parse_sent(body, sent)) same(body, {}, [&](auto& o) { put_sent(o, sent); });
  std::vector<uint32_t> hashes;
  if (wire::parse_hashes(body, hashes))
    same(body, {}, [&](auto& o) { wire::put_hashes(o, hashes); });
  Member root = 0;
  std::vector<ChunkRange> ranges;
  if (wire::parse_ranges(body, root, ranges)) {
    same(body, {}, [&](auto& o) { wire::put_ranges(o, root, ranges); });
  }
}

void check_fetches(ConstBytes body) {
  wire::Fetch fetch;
  if (wire::parse_fetch(body, fetch)) {
    same(body, {}, [&](auto& o) { put_fetch(o, fetch.descriptor, fetch.root, fetch.ranges); });
  }
  wire::FetchData data;
  if (wire::parse_fetch_data(body, data)) {
    require(data.range.first < data.range.end, "a range that holds something");
    same(body, data.payload, [&](auto& o) { put_fetch_data_head(o, data.root, data.range); });
  }
  wire::FetchGrant grant;
  if (wire::parse_fetch_grant(body, grant)) {
    same(body, {}, [&](auto& o) { put_fetch_grant(o, grant); });
  }
}

void check_reductions(ConstBytes body) {
  wire::ReduceData data;
  if (wire::parse_reduce_data(body, data)) {
    same(body, data.payload, [&](auto& o) { wire::put_reduce_head(o, data.segment, data.factor); });
  }
  wire::ReduceOffer offer;
  if (wire::parse_reduce_offer(body, offer)) {
    same(body, {}, [&](auto& o) { put_reduce_offer(o, offer); });
  }
  wire::ExchangeGrant leave;
  if (wire::parse_exchange_grant(body, leave)) {
    same(body, {}, [&](auto& o) { put_exchange_grant(o, leave); });
  }
  wire::ExchangeData piece;
  if (wire::parse_exchange_data(body, piece)) {
    same(body, piece.payload,
         [&](auto& o) { wire::put_exchange_head(o, piece.total, piece.offset); });
  }
  wire::RingData ring;
  if (wire::parse_ring_data(body, ring)) {
    same(body, ring.payload, [&](auto& o) { wire::put_ring_head(o, ring.root, ring.offset); });
  }
}

void check_messages(ConstBytes body) {
  wire::MessageHead head;
  if (wire::parse_message_head(body, head)) {
    require(head.payload.size() <= head.total, "no more than the message has");
    same(body, head.payload, [&](auto& o) { wire::put_message_head(o, head.total); });
  }
  wire::MessageData data;
  if (wire::parse_message_data(body, data)) {
    same(body, data.payload, [&](auto& o) { wire::put_message_head(o, data.offset); });
  }
  uint64_t end = 0;
  if (wire::parse_message_grant(body, end)) {
    same(body, {}, [&](auto& o) { wire::put_message_grant(o, end); });
  }
  wire::MessageCredit credit;
  if (wire::parse_message_credit(body, credit)) {
    same(body, {}, [&](auto& o) { put_message_credit(o, credit); });
  }
}

void check_notices(ConstBytes body) {
  std::array<std::byte, 32> digest{};
  if (wire::parse_block_digest(body, digest)) {
    require(fuzz::equal(digest, body), "a digest is read as it is");
  }
  wire::AbortNotice notice;
  if (wire::parse_abort(body, notice)) same(body, {}, [&](auto& o) { put_abort(o, notice); });
  wire::Descriptor descriptor;
  if (!wire::parse_descriptor(body, descriptor)) return;
  same(body, {}, [&](auto& o) { put_descriptor(o, descriptor); });
  require(descriptor.same(descriptor) && !descriptor.to_string().empty(), "it can be told");
  wire::Descriptor renamed = descriptor;
  renamed.name = "x";
  require(renamed.hash() == descriptor.hash(), "the name does not count");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ConstBytes frame = fuzz::bytes_of(data, size);
  for (const char* type : {"credit", "abort"}) {
    (void)wire_fault_classifier().matches("type", type, frame, true);
  }
  (void)wire_fault_classifier().matches("member", "1-2", frame, true);
  wire::FrameHeader header;
  if (!wire::parse_frame(frame, header)) return 0;
  const ConstBytes body = frame.subspan(wire::kFrameHeader);
  std::vector<std::byte> again(frame.begin(), frame.end());
  const std::vector<ConstBytes> parts{body.subspan(0, body.size() / 2),
                                      body.subspan(body.size() / 2)};
  wire::write_frame_header(again.data(), header, parts);
  require(wire::verify_frame(again), "what is written has the right checksum");
  require(fuzz::equal(ConstBytes(again).subspan(4), frame.subspan(4)),
          "a header is written as it was read");
  require(wire::verify_frame(frame) == fuzz::equal(again, frame),
          "one checksum and no other is right");
  require(wire::frame_type_name(header.type) != std::string_view("unknown"), "it has a name");
  check_lists(body);
  check_fetches(body);
  check_reductions(body);
  check_messages(body);
  check_notices(body);
  return 0;
}
