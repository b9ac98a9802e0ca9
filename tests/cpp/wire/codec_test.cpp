// Codecs: messages are read as they were written; every truncation and every flipped bit is
// refused, by structure or by checksum; a body of any length is either exactly one message or
// invalid.
#include <gtest/gtest.h>

#include "base/element.h"
#include "base/rng.h"
#include "wire/datagram.h"
#include "wire/descriptor.h"
#include "wire/frame.h"

namespace mcast::wire {
namespace {

std::vector<std::byte> noise(Rng& rng, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
  return bytes;
}

DatagramHeader some_header(Rng& rng) {
  DatagramHeader h;
  h.type = static_cast<DatagramType>(1 + rng.below(4));
  h.lane = static_cast<uint8_t>(rng.below(2));
  h.group_tag = rng.next();
  h.sequence = static_cast<Sequence>(rng.next());
  h.descriptor = static_cast<uint32_t>(rng.next());
  h.chunk = static_cast<Chunk>(rng.next());
  h.member = static_cast<Member>(rng.next());
  h.reserved = static_cast<uint16_t>(rng.next());
  return h;
}

std::vector<std::byte> datagram(const DatagramHeader& h, ConstBytes payload) {
  std::vector<std::byte> out(kDatagramHeader + payload.size());
  EXPECT_EQ(write_datagram(out, h, payload), out.size());
  return out;
}

FrameHeader some_frame_header(Rng& rng) {
  FrameHeader h;
  h.type = static_cast<FrameType>(1 + rng.below(kFrameTypeMax));
  h.lane = static_cast<uint8_t>(rng.below(2));
  h.member = static_cast<Member>(rng.next());
  h.group_tag = rng.next();
  h.sequence = static_cast<Sequence>(rng.next());
  h.argument = static_cast<uint32_t>(rng.next());
  return h;
}

std::vector<std::byte> frame(const FrameHeader& h, ConstBytes body) {
  std::vector<std::byte> out(kFrameHeader + body.size());
  const ConstBytes parts[] = {body};
  write_frame_header(out.data(), h, parts);
  std::copy(body.begin(), body.end(), out.begin() + kFrameHeader);
  return out;
}

TEST(Datagrams, RoundTrip) {
  Rng rng(1);
  for (int i = 0; i < 2000; i++) {
    const DatagramHeader h = some_header(rng);
    const auto payload = noise(rng, rng.below(4000));
    const auto bytes = datagram(h, payload);
    DatagramHeader back;
    ASSERT_EQ(parse_datagram(bytes, back), ParseError::kNone);
    ASSERT_EQ(back, h);
    ASSERT_TRUE(verify_datagram(bytes));
    ASSERT_TRUE(std::equal(payload.begin(), payload.end(), bytes.begin() + kDatagramHeader));
  }
}

TEST(Datagrams, PayloadAlreadyInPlaceIsNotCopied) {
  Rng rng(2);
  const auto payload = noise(rng, 500);
  const DatagramHeader h = some_header(rng);
  std::vector<std::byte> slot(kDatagramHeader + 500);
  std::copy(payload.begin(), payload.end(), slot.begin() + kDatagramHeader);
  write_datagram(slot, h, ConstBytes(slot).subspan(kDatagramHeader));
  EXPECT_EQ(slot, datagram(h, payload));
}

TEST(Datagrams, SealedApartFromItsPayloadTheHeaderIsTheSame) {
  Rng rng(3);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1408}, size_t{9000}}) {
    const auto payload = noise(rng, size);
    const DatagramHeader h = some_header(rng);
    std::vector<std::byte> slot(kDatagramHeader + size, std::byte{0x77});
    seal_datagram(slot, h, payload);
    EXPECT_EQ(std::count(slot.begin() + kDatagramHeader, slot.end(), std::byte{0x77}), size);
    copy_payload(slot, payload);
    EXPECT_EQ(slot, datagram(h, payload));
    EXPECT_TRUE(verify_datagram(slot));
  }
}

TEST(Datagrams, LayoutIsThatOfVersionOne) {
  DatagramHeader h;
  h.type = DatagramType::kPosition;
  h.lane = 1;
  h.group_tag = 0x0807060504030201;
  h.sequence = 0x0c0b0a09;
  h.descriptor = 0x100f0e0d;
  h.chunk = 0x14131211;
  h.member = 0x1615;
  h.reserved = 0x1817;
  const auto bytes = datagram(h, {});
  const uint8_t want[] = {0x43, 0x4d, 0x12, 0x01, 1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                          11,   12,   13,   14,   15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
  ASSERT_EQ(bytes.size(), 32u);
  for (size_t i = 0; i < 28; i++) EXPECT_EQ(bytes[4 + i], std::byte{want[i]}) << "offset " << 4 + i;
}

TEST(Datagrams, EveryTruncationIsRefused) {
  Rng rng(3);
  const auto whole = datagram(some_header(rng), noise(rng, 100));
  for (size_t size = 0; size < whole.size(); size++) {
    const ConstBytes cut = ConstBytes(whole).first(size);
    DatagramHeader h;
    if (size < kDatagramHeader) {
      EXPECT_EQ(parse_datagram(cut, h), ParseError::kTooShort);
    } else {
      EXPECT_EQ(parse_datagram(cut, h), ParseError::kNone);
      EXPECT_FALSE(verify_datagram(cut)) << size;
    }
  }
}

TEST(Datagrams, EveryFlippedBitIsRefused) {
  Rng rng(4);
  for (const size_t size : {0, 1, 64, 1408}) {
    auto bytes = datagram(some_header(rng), noise(rng, size));
    for (size_t bit = 0; bit < bytes.size() * 8; bit++) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      DatagramHeader h;
      EXPECT_TRUE(parse_datagram(bytes, h) != ParseError::kNone || !verify_datagram(bytes)) << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
  }
}

TEST(Datagrams, ReasonsOfRefusal) {
  Rng rng(5);
  DatagramHeader header = some_header(rng), out;
  header.type = DatagramType::kData;
  const auto good = datagram(header, noise(rng, 10));
  const auto with = [&good](size_t at, uint8_t value) {
    auto bytes = good;
    bytes[at] = std::byte{value};
    return bytes;
  };
  EXPECT_EQ(parse_datagram(with(4, 0x44), out), ParseError::kMagic);
  EXPECT_EQ(parse_datagram(with(6, 0x21), out), ParseError::kVersion);
  EXPECT_EQ(parse_datagram(with(6, 0x10), out), ParseError::kType);
  EXPECT_EQ(parse_datagram(with(6, 0x15), out), ParseError::kType);
  EXPECT_EQ(parse_datagram(with(7, 0x02), out), ParseError::kNone);  // last chunk
  EXPECT_EQ(parse_datagram(with(7, 0x04), out), ParseError::kNone);  // in order
  EXPECT_EQ(parse_datagram(with(7, 0x08), out), ParseError::kFlags);
  EXPECT_EQ(parse_datagram(with(7, 0x80), out), ParseError::kFlags);
  for (int e = 0; e <= static_cast<int>(ParseError::kChecksum); e++) {
    EXPECT_STRNE(parse_error_name(static_cast<ParseError>(e)), "unknown");
  }
}

TEST(Frames, RoundTripInOneAndInTwoParts) {
  Rng rng(6);
  for (int i = 0; i < 2000; i++) {
    const FrameHeader h = some_frame_header(rng);
    const auto body = noise(rng, rng.below(300));
    const auto bytes = frame(h, body);
    FrameHeader back;
    ASSERT_TRUE(parse_frame(bytes, back));
    ASSERT_EQ(back, h);
    ASSERT_TRUE(verify_frame(bytes));
    const size_t split = rng.below(body.size() + 1);
    const ConstBytes parts[] = {ConstBytes(body).first(split), ConstBytes(body).subspan(split)};
    std::byte head[kFrameHeader];
    write_frame_header(head, h, parts);
    ASSERT_TRUE(std::equal(head, head + kFrameHeader, bytes.begin()));
  }
}

TEST(Frames, EveryTruncationAndEveryFlippedBitIsRefused) {
  Rng rng(7);
  for (const size_t size : {0, 2, 14, 500}) {
    auto bytes = frame(some_frame_header(rng), noise(rng, size));
    FrameHeader h;
    for (size_t cut = 0; cut < bytes.size(); cut++) {
      const ConstBytes part = ConstBytes(bytes).first(cut);
      EXPECT_FALSE(parse_frame(part, h) && verify_frame(part)) << cut;
    }
    for (size_t bit = 0; bit < bytes.size() * 8; bit++) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      EXPECT_FALSE(parse_frame(bytes, h) && verify_frame(bytes)) << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
  }
}

TEST(Frames, EveryTypeHasAName) {
  for (uint8_t t = 1; t <= kFrameTypeMax; t++) {
    EXPECT_STRNE(frame_type_name(static_cast<FrameType>(t)), "unknown");
    EXPECT_STRNE(frame_type_name(static_cast<FrameType>(t)), "none");
  }
  EXPECT_STREQ(frame_type_name(static_cast<FrameType>(kFrameTypeMax + 1)), "unknown");
}

// ---- bodies ----

TEST(Bodies, CreditRoundTripsAndCutEntriesAreRefused) {
  Rng rng(8);
  for (size_t n = 0; n < 40; n++) {
    std::vector<CreditEntry> entries(n), back;
    for (CreditEntry& e : entries) {
      e = {static_cast<Member>(rng.next()), static_cast<Chunk>(rng.next()),
           static_cast<Chunk>(rng.next()), static_cast<uint32_t>(rng.next())};
    }
    Writer out;
    put_credit(out, entries);
    ASSERT_TRUE(parse_credit(out.bytes(), back));
    ASSERT_EQ(back, entries);
    for (size_t cut = 0; cut < out.size(); cut++) {
      EXPECT_EQ(parse_credit(out.bytes().first(cut), back), cut % 14 == 0);
    }
  }
}

TEST(Bodies, RangesRoundTripAndInvalidOnesAreRefused) {
  Rng rng(9);
  for (size_t n = 0; n < 40; n++) {
    std::vector<ChunkRange> ranges(n), back;
    for (ChunkRange& r : ranges) {
      r.first = static_cast<Chunk>(rng.below(UINT32_MAX));
      r.end = r.first + 1 + static_cast<Chunk>(rng.below(UINT32_MAX - r.first));
    }
    Writer out;
    put_ranges(out, 77, ranges);
    Member root = 0;
    ASSERT_TRUE(parse_ranges(out.bytes(), root, back));
    EXPECT_EQ(root, 77);
    ASSERT_EQ(back, ranges);
  }
  for (const ChunkRange bad : {ChunkRange{5, 5}, ChunkRange{6, 5}, ChunkRange{UINT32_MAX, 0}}) {
    Writer out;
    const ChunkRange one[] = {bad};
    put_ranges(out, 1, one);
    Member root = 0;
    std::vector<ChunkRange> back;
    EXPECT_FALSE(parse_ranges(out.bytes(), root, back));
  }
}

TEST(Bodies, FetchAndSentRoundTripAndCutEntriesAreRefused) {
  Rng rng(19);
  const std::vector<ChunkRange> ranges{{1, 3}, {9, 10}};
  Writer out;
  put_fetch(out, 0xdeadbeef, 5, ranges);
  Fetch fetch;
  ASSERT_TRUE(parse_fetch(out.bytes(), fetch));
  EXPECT_EQ(fetch.descriptor, 0xdeadbeef);
  EXPECT_EQ(fetch.root, 5);
  EXPECT_EQ(fetch.ranges, ranges);
  for (size_t cut = 1; cut < out.size(); cut++) {
    const bool whole = cut >= 6 && (cut - 6) % 8 == 0;
    EXPECT_EQ(parse_fetch(out.bytes().first(cut), fetch), whole) << cut;
  }
  Writer sent;
  const std::vector<SentEntry> entries{{3, 77}, {1, UINT32_MAX}};
  put_sent(sent, entries);
  std::vector<SentEntry> back;
  ASSERT_TRUE(parse_sent(sent.bytes(), back));
  EXPECT_EQ(back, entries);
  for (size_t cut = 1; cut < sent.size(); cut++) {
    EXPECT_EQ(parse_sent(sent.bytes().first(cut), back), cut == 6) << cut;
  }
}

TEST(Bodies, FetchDataHashesAbortRing) {
  Rng rng(10);
  const auto payload = noise(rng, 99);
  Writer fetch;
  put_fetch_data_head(fetch, 3, {7, 9});
  EXPECT_EQ(fetch.size(), kFetchDataHead);
  std::vector<std::byte> whole(fetch.bytes().begin(), fetch.bytes().end());
  whole.insert(whole.end(), payload.begin(), payload.end());
  FetchData data;
  ASSERT_TRUE(parse_fetch_data(whole, data));
  EXPECT_EQ(data.root, 3);
  EXPECT_EQ(data.range, (ChunkRange{7, 9}));
  EXPECT_EQ(data.payload.size(), 99u);
  for (size_t cut = 0; cut < kFetchDataHead; cut++) {
    EXPECT_FALSE(parse_fetch_data(ConstBytes(whole).first(cut), data));
  }

  const FetchGrant sent{3, 0x1122334455667788, 0xaabbccdd, {{1, 2}, {9, 30}}};
  FetchGrant granted;
  Writer g;
  put_fetch_grant(g, sent);
  ASSERT_TRUE(parse_fetch_grant(g.bytes(), granted));
  EXPECT_EQ(granted.root, sent.root);
  EXPECT_EQ(granted.address, sent.address);
  EXPECT_EQ(granted.key, sent.key);
  EXPECT_EQ(granted.ranges, sent.ranges);
  for (size_t cut = 1; cut < 14; cut++) {
    EXPECT_FALSE(parse_fetch_grant(g.bytes().first(cut), granted)) << cut;
  }

  const std::vector<uint32_t> hashes = {1, 0xffffffff, 0};
  std::vector<uint32_t> back;
  Writer h;
  put_hashes(h, hashes);
  ASSERT_TRUE(parse_hashes(h.bytes(), back));
  EXPECT_EQ(back, hashes);
  EXPECT_FALSE(parse_hashes(h.bytes().first(11), back));

  Writer a;
  put_abort(a, {4, 7, 2, 1, std::string(5000, 'x')});
  AbortNotice notice;
  ASSERT_TRUE(parse_abort(a.bytes(), notice));
  EXPECT_EQ(notice.code, 4);
  EXPECT_EQ(notice.culprit, 7);
  EXPECT_EQ(notice.origin, 2);
  EXPECT_EQ(notice.path, 1);
  EXPECT_EQ(notice.text, std::string(kMaxAbortText, 'x'));
  for (size_t cut = 0; cut < 6; cut++) EXPECT_FALSE(parse_abort(a.bytes().first(cut), notice));

  Writer r;
  put_ring_head(r, 9, 0x123456789abcdef0);
  RingData ring;
  EXPECT_FALSE(parse_ring_data(r.bytes(), ring)) << "no payload";
  r.put<uint8_t>(1);
  ASSERT_TRUE(parse_ring_data(r.bytes(), ring));
  EXPECT_EQ(ring.root, 9);
  EXPECT_EQ(ring.offset, 0x123456789abcdef0u);
  EXPECT_EQ(ring.payload.size(), 1u);
}

TEST(Bodies, DescriptorRoundTripAndTextOfManyKinds) {
  Descriptor d{Kind::kBroadcast, 6, 3, 1ull << 40, "all_gather_into_tensor"};
  Writer out;
  put_descriptor(out, d);
  Descriptor back;
  ASSERT_TRUE(parse_descriptor(out.bytes(), back));
  EXPECT_TRUE(back.same(d));
  EXPECT_EQ(back.name, d.name);
  for (size_t cut = 0; cut < 12; cut++)
    EXPECT_FALSE(parse_descriptor(out.bytes().first(cut), back));
  d.name = std::string(500, 'n');
  Writer long_name;
  put_descriptor(long_name, d);
  ASSERT_TRUE(parse_descriptor(long_name.bytes(), back));
  EXPECT_EQ(back.name.size(), 64u);
  Writer bad;
  bad.put<uint8_t>(9);
  bad.put<uint8_t>(0);
  bad.put<uint16_t>(0);
  bad.put<uint64_t>(0);
  EXPECT_FALSE(parse_descriptor(bad.bytes(), back));
}

TEST(Bodies, DescriptorsOfReductionsNameThem) {
  Descriptor d{Kind::kReduce, 6, 3, 4096, ""};
  d.reduction = static_cast<uint8_t>(Reduction::kMax);
  EXPECT_EQ(d.to_string(), "reduce(4096 bytes, element type 6, max, root 3)");
  for (uint8_t kind = 1; kind <= kKindMax; kind++) {
    d.kind = static_cast<Kind>(kind);
    Writer out;
    put_descriptor(out, d);
    Descriptor back;
    ASSERT_TRUE(parse_descriptor(out.bytes(), back));
    EXPECT_TRUE(back.same(d));
    EXPECT_EQ(back.reduction, d.reduction);
    EXPECT_EQ(is_reduction(back.kind), kind >= 4 && kind <= 6);
    EXPECT_EQ(is_exchange(back.kind), kind >= 7);
    EXPECT_STRNE(kind_name(back.kind), "unknown");
  }
}

TEST(Bodies, ReduceDataRoundTripAndTruncation) {
  Writer out;
  put_reduce_head(out, 77, -0.5);
  EXPECT_EQ(out.bytes().size(), 12u);
  ReduceData data;
  EXPECT_FALSE(parse_reduce_data(out.bytes(), data)) << "no payload";
  out.put<uint8_t>(9);
  ASSERT_TRUE(parse_reduce_data(out.bytes(), data));
  EXPECT_EQ(data.segment, 77u);
  EXPECT_EQ(data.factor, -0.5);
  ASSERT_EQ(data.payload.size(), 1u);
  EXPECT_EQ(data.payload[0], std::byte{9});
  for (size_t n = 0; n < 13; n++) {
    EXPECT_FALSE(parse_reduce_data(out.bytes().first(n), data)) << n;
  }
}

TEST(Bodies, ExchangeDataRoundTripAndTruncation) {
  Writer out;
  put_exchange_head(out, 1ull << 40, 77);
  EXPECT_EQ(out.bytes().size(), kExchangeHead);
  ExchangeData data;
  ASSERT_TRUE(parse_exchange_data(out.bytes(), data)) << "that there is nothing is told, too";
  EXPECT_TRUE(data.payload.empty());
  out.put<uint8_t>(9);
  ASSERT_TRUE(parse_exchange_data(out.bytes(), data));
  EXPECT_EQ(data.total, 1ull << 40);
  EXPECT_EQ(data.offset, 77u);
  ASSERT_EQ(data.payload.size(), 1u);
  EXPECT_EQ(data.payload[0], std::byte{9});
  for (size_t n = 0; n < kExchangeHead; n++) {
    EXPECT_FALSE(parse_exchange_data(out.bytes().first(n), data)) << n;
  }
  Writer leave;
  put_exchange_grant(leave, {1ull << 40, 78});
  ExchangeGrant grant;
  ASSERT_TRUE(parse_exchange_grant(leave.bytes(), grant));
  EXPECT_EQ(grant.total, 1ull << 40);
  EXPECT_EQ(grant.end, 78u);
  for (size_t n = 0; n < kExchangeGrantSize; n++) {
    EXPECT_FALSE(parse_exchange_grant(leave.bytes().first(n), grant)) << n;
  }
  EXPECT_FALSE(parse_exchange_grant(out.bytes(), grant)) << "too long";
}

TEST(Bodies, DescriptorHashTellsEveryFieldApart) {
  const Descriptor base{Kind::kBroadcast, 6, 3, 1000, "a"};
  Descriptor other = base;
  other.name = "b";
  EXPECT_EQ(base.hash(), other.hash());
  for (int field = 0; field < 5; field++) {
    other = base;
    if (field == 0) other.kind = Kind::kAllgather;
    if (field == 1) other.element = 7;
    if (field == 2) other.root = 4;
    if (field == 3) other.bytes = 1001;
    if (field == 4) other.reduction = 1;
    EXPECT_NE(base.hash(), other.hash()) << field;
    EXPECT_FALSE(base.same(other)) << field;
  }
}

TEST(Parsers, RandomAndMutatedBytesNeverCrash) {
  Rng rng(11);
  std::vector<CreditEntry> credit;
  std::vector<ChunkRange> ranges;
  std::vector<uint32_t> hashes;
  for (int i = 0; i < 100000; i++) {
    auto bytes = noise(rng, rng.below(80));
    if (rng.chance(0.5) && bytes.size() > 8) {
      // Gets past the first checks.
      store<uint16_t>(bytes.data() + 4, kDatagramMagic);
      bytes[6] = static_cast<std::byte>(0x10 | (1 + rng.below(4)));
      bytes[7] = std::byte{0};
    }
    DatagramHeader d;
    if (parse_datagram(bytes, d) == ParseError::kNone) (void)verify_datagram(bytes);
    FrameHeader f;
    if (parse_frame(bytes, f)) (void)verify_frame(bytes);
    Member root = 0;
    FetchData fetch;
    AbortNotice notice;
    RingData ring;
    ExchangeData piece;
    ExchangeGrant leave;
    Descriptor descriptor;
    (void)parse_credit(bytes, credit);
    if (parse_ranges(bytes, root, ranges)) {
      for (const ChunkRange& r : ranges) ASSERT_LT(r.first, r.end);
    }
    if (parse_fetch_data(bytes, fetch)) {
      ASSERT_LT(fetch.range.first, fetch.range.end);
    }
    (void)parse_hashes(bytes, hashes);
    (void)parse_exchange_grant(bytes, leave);
    if (parse_exchange_data(bytes, piece)) {
      ASSERT_EQ(piece.payload.size(), bytes.size() - kExchangeHead);
    }
    if (parse_abort(bytes, notice)) {
      ASSERT_LE(notice.text.size(), kMaxAbortText);
    }
    if (parse_ring_data(bytes, ring)) {
      ASSERT_GT(ring.payload.size(), 0u);
    }
    if (parse_descriptor(bytes, descriptor)) {
      ASSERT_LE(descriptor.name.size(), 64u);
    }
  }
}

}  // namespace
}  // namespace mcast::wire
