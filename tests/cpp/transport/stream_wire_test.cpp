// Hello, HelloAck and frame splitting: round trips, refusals, every way to split a byte stream.
#include "transport/udp/stream_wire.h"

#include <gtest/gtest.h>

#include <vector>

#include "transport/transport_contract.h"
#include "transport/udp/send_queue.h"
#include "transport/udp/socket.h"

namespace mcast {
namespace {

using testing::Buffer;
using testing::pattern;

void add_frame(Buffer& stream, const Buffer& frame) {
  const auto prefix = encode_prefix(static_cast<uint32_t>(frame.size()));
  stream.insert(stream.end(), prefix.begin(), prefix.end());
  stream.insert(stream.end(), frame.begin(), frame.end());
}

TEST(StreamWire, HelloRoundTrip) {
  Hello hello;
  hello.channel = Channel::kReduce;
  hello.source = 0x0123456789abcdef;
  hello.target = 0xfedcba9876543210;
  hello.listen_port = 54321;
  const auto bytes = encode(hello);
  const auto back = decode_hello(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->channel, hello.channel);
  EXPECT_EQ(back->source, hello.source);
  EXPECT_EQ(back->target, hello.target);
  EXPECT_EQ(back->listen_port, hello.listen_port);
  EXPECT_EQ(static_cast<char>(bytes[0]), 'M');
  EXPECT_EQ(static_cast<char>(bytes[3]), 'T');
  for (size_t i :
       {0u, 3u, 4u, 5u, 6u, 7u, 24u, 27u, 30u, 31u}) {  // every byte that has a required value
    auto bad = bytes;
    bad[i] ^= std::byte{0x80};
    EXPECT_FALSE(decode_hello(bad).has_value()) << i;
  }
}

TEST(StreamWire, AHelloNamesItsPlaceInTheStripe) {
  Hello hello;
  hello.channel = Channel::kRepair;
  hello.stripe = 2;
  hello.stripes = 3;
  const auto back = decode_hello(encode(hello));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->stripe, 2);
  EXPECT_EQ(back->stripes, 3);
  hello.stripe = 3;  // beyond the last stripe
  EXPECT_FALSE(decode_hello(encode(hello)).has_value());
  hello.stripe = 1;
  hello.channel = Channel::kControl;  // this channel is not striped
  EXPECT_FALSE(decode_hello(encode(hello)).has_value());
}

TEST(StreamWire, AddressesOfAStripeRoundTrip) {
  std::vector<Endpoint> endpoints;
  for (uint32_t i = 0; i < 3; ++i) {
    endpoints.push_back({IpAddress::v4(0x0a000001 + (i << 16)), static_cast<uint16_t>(4000 + i)});
    const StreamAddress address = stripe_address(5, endpoints);
    EXPECT_EQ(stripe_count(address), endpoints.size());
    const auto back = stripe_endpoints(address);
    ASSERT_TRUE(back.ok()) << address.host;
    EXPECT_EQ(*back, endpoints);
  }
  const StreamAddress three = stripe_address(5, endpoints);
  EXPECT_EQ(three.host, "10.0.0.1+10.1.0.1:4001+10.2.0.1:4002");
  EXPECT_EQ(three.port, 4000);
  for (const char* bad : {"", "10.0.0.1+", "10.0.0.1+10.0.0.2", "10.0.0.1+10.0.0.2:",
                          "10.0.0.1+10.0.0.2:0", "10.0.0.1+10.0.0.2:65536", "10.0.0.1+:80",
                          "10.0.0.1+10.0.0.2:8x", "+10.0.0.1:80", "fd00::1+fd00::2:80",
                          "[fd00::1]+[fd00::2]:80", "fd00::1+[fd00::2]", "::", "fe80::1%eth0"}) {
    EXPECT_FALSE(stripe_endpoints({1, bad, 80}).ok()) << bad;
  }
}

TEST(StreamWire, StripeOfIPv6AddressesRoundTrips) {
  const std::vector<Endpoint> endpoints = {{*IpAddress::parse("fd00::1"), 4000},
                                           {*IpAddress::parse("fd00:1::2"), 4001}};
  const StreamAddress address = stripe_address(5, endpoints);
  EXPECT_EQ(address.host, "fd00::1+[fd00:1::2]:4001");
  EXPECT_EQ(stripe_count(address), 2u);
  ASSERT_TRUE(stripe_endpoints(address).ok());
  EXPECT_EQ(*stripe_endpoints(address), endpoints);
  EXPECT_EQ(endpoint_text(address, 1), "peer [fd00:1::2]:4001");
  EXPECT_EQ(endpoint_text(address, 0), "peer [fd00::1]:4000");
}

TEST(StreamWire, AFrameThatMustWaitStaysInTheInput) {
  Buffer stream;
  for (size_t size : {3, 4, 5}) add_frame(stream, pattern(size, size));
  std::vector<size_t> seen;
  const auto hold_fours = [&](ConstBytes frame) {
    seen.push_back(frame.size());
    return frame.size() == 4 ? kTakeHold : kTakeMore;
  };
  const FrameScan first = scan_frames(stream, 10, hold_fours);
  EXPECT_EQ(first.end, FrameScan::End::kHeld);
  EXPECT_EQ(first.frames, 1u);
  EXPECT_EQ(first.consumed, kFramePrefix + 3);
  const auto take = [](ConstBytes) { return kTakeMore; };
  const FrameScan second = scan_frames(ConstBytes(stream).subspan(first.consumed), 10, take);
  EXPECT_EQ(second.frames, 2u);
  EXPECT_EQ(seen, (std::vector<size_t>{3, 4}));
}

TEST(StreamWire, HelloAckRoundTrip) {
  const auto bytes = encode(HelloAck{Verdict::kYield, Channel::kRepair, 77});
  const auto back = decode_hello_ack(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->verdict, Verdict::kYield);
  EXPECT_EQ(back->channel, Channel::kRepair);
  EXPECT_EQ(back->uid, 77u);
  for (size_t i = 0; i < 8; ++i) {
    auto bad = bytes;
    bad[i] ^= std::byte{0x80};
    EXPECT_FALSE(decode_hello_ack(bad).has_value()) << i;
  }
}

TEST(StreamWire, FramesSurviveEverySplit) {
  Buffer stream;
  std::vector<Buffer> frames;
  for (size_t size : {1, 3, 4, 5, 20}) {
    frames.push_back(pattern(size, size));
    add_frame(stream, frames.back());
  }
  for (size_t split = 0; split <= stream.size(); ++split) {
    std::vector<Buffer> got;
    const auto keep = [&](ConstBytes f) {
      got.push_back(testing::to_buffer(f));
      return true;
    };
    const ConstBytes all(stream);
    const FrameScan first = scan_frames(all.first(split), 100, keep);
    EXPECT_EQ(first.end, FrameScan::End::kNeedMore);
    ASSERT_LE(first.consumed, split);
    const FrameScan second = scan_frames(all.subspan(first.consumed), 100, keep);
    EXPECT_EQ(second.end, FrameScan::End::kNeedMore);
    EXPECT_EQ(first.consumed + second.consumed, stream.size());
    EXPECT_EQ(first.frames + second.frames, frames.size());
    EXPECT_EQ(got, frames) << split;
  }
}

TEST(StreamWire, BadLengthsAndBytesAfterTheGoodbyeAreViolations) {
  const auto scan = [](uint32_t length, size_t extra) {
    Buffer stream;
    add_frame(stream, pattern(3, 1));
    const auto prefix = encode_prefix(length);
    stream.insert(stream.end(), prefix.begin(), prefix.end());
    for (; extra > 0; --extra) stream.push_back(std::byte{0});
    return scan_frames(stream, 10, [](ConstBytes) { return true; });
  };
  EXPECT_EQ(scan(10, 0).end, FrameScan::End::kNeedMore);
  EXPECT_EQ(scan(11, 0).end, FrameScan::End::kViolation);
  EXPECT_EQ(scan(11, 0).bad_length, 11u);
  EXPECT_EQ(scan(0, 0).end, FrameScan::End::kViolation);
  EXPECT_EQ(scan(0xfffffffe, 0).end, FrameScan::End::kViolation);
  EXPECT_EQ(scan(kGoodbyeLength, 0).end, FrameScan::End::kGoodbye);
  EXPECT_EQ(scan(kGoodbyeLength, 0).frames, 1u);
  EXPECT_EQ(scan(kGoodbyeLength, 1).end, FrameScan::End::kViolation);
}

TEST(StreamWire, AReceiverCanStopTheScan) {
  Buffer stream;
  for (int i = 0; i < 3; ++i) add_frame(stream, pattern(4, 1));
  const FrameScan scan = scan_frames(stream, 10, [](ConstBytes) { return false; });
  EXPECT_EQ(scan.end, FrameScan::End::kStopped);
  EXPECT_EQ(scan.frames, 1u);
}

TEST(SendQueue, KeepsBytesInOrderAcrossBlocks) {
  SendQueue queue;
  Rng rng(1);
  Buffer sent, got;
  for (int i = 0; i < 500; ++i) {
    const Buffer piece = pattern(rng.below(i % 40 == 0 ? 200'000 : 2000), static_cast<uint64_t>(i));
    queue.append(piece);
    sent.insert(sent.end(), piece.begin(), piece.end());
    if (i % 3 != 0) continue;
    iovec vectors[4];
    const size_t used = queue.front(vectors);
    size_t offered = 0;
    for (size_t v = 0; v < used; ++v) offered += vectors[v].iov_len;
    size_t take = rng.below(offered + 1);
    const size_t taken = take;
    for (size_t v = 0; v < used && take > 0; ++v) {
      const size_t n = std::min(take, vectors[v].iov_len);
      const auto* at = static_cast<const std::byte*>(vectors[v].iov_base);
      got.insert(got.end(), at, at + n);
      take -= n;
    }
    queue.consume(taken);
    ASSERT_EQ(queue.size(), sent.size() - got.size());
  }
  while (!queue.empty()) {
    iovec one[1];
    ASSERT_EQ(queue.front(one), 1u);
    const auto* at = static_cast<const std::byte*>(one[0].iov_base);
    got.insert(got.end(), at, at + one[0].iov_len);
    queue.consume(one[0].iov_len);
  }
  EXPECT_TRUE(got == sent);
  queue.append(pattern(10, 1));
  queue.clear();
  EXPECT_TRUE(queue.empty());
  iovec none[1];
  EXPECT_EQ(queue.front(none), 0u);
}

}  // namespace
}  // namespace mcast
