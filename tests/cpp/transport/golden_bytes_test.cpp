// The bytes of unguarded groups on the wire, compared with an implementation in Python of
// docs/protocol.md: guards must not change version 1.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "transport/udp/stream_wire.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast {
namespace {

ConstBytes text_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string in_hex(ConstBytes bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    out += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4];
    out += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

TEST(GoldenBytes, DatagramHasTheRecordedBytes) {
  const wire::DatagramHeader header{
      wire::DatagramType::kData, 1, true, true, 0x1122334455667788, 77, 0xdeadbeef, 12, 5, 0};
  std::vector<std::byte> out(wire::kDatagramHeader + 7);
  ASSERT_EQ(wire::write_datagram(out, header, text_bytes("payload")), out.size());
  EXPECT_EQ(in_hex(out),
            "7d45fed9434d110788776655443322114d000000efbeadde0c000000050000007061796c6f6164");
}

TEST(GoldenBytes, FrameHasTheRecordedBytes) {
  const wire::FrameHeader header{wire::FrameType::kCredit, 1,  5,
                                 0x1122334455667788,       77, 0xdeadbeef};
  std::vector<std::byte> out(wire::kFrameHeader);
  const ConstBytes body = text_bytes("body");
  wire::write_frame_header(out.data(), header, {&body, 1});
  EXPECT_EQ(in_hex(out) + in_hex(body), "d9d4775f0101050088776655443322114d000000efbeadde626f6479");
}

std::string message_frame(wire::FrameType type, Sequence number, uint32_t argument, ConstBytes body,
                          std::string_view payload = {}) {
  std::vector<std::byte> out(wire::kFrameHeader);
  const ConstBytes parts[] = {body, text_bytes(payload)};
  wire::write_frame_header(out.data(), {type, 1, 5, 0x1122334455667788, number, argument}, parts);
  return in_hex(out) + in_hex(body) + in_hex(text_bytes(payload));
}

TEST(GoldenBytes, MessagesHaveTheRecordedBytes) {
  using T = wire::FrameType;
  wire::Writer head, grant, data, credit;
  wire::put_message_head(head, 9);
  EXPECT_EQ(message_frame(T::kMessage, 3, 42, head.bytes(), "payload"),
            "837b3fe9370105008877665544332211030000002a000000"
            "09000000000000007061796c6f6164");
  wire::put_message_grant(grant, 9);
  EXPECT_EQ(message_frame(T::kMessageGrant, 3, 0, grant.bytes()),
            "44c93caa38010500887766554433221103000000000000000900000000000000");
  wire::put_message_head(data, 7);
  EXPECT_EQ(message_frame(T::kMessageData, 3, 0, data.bytes(), "ab"),
            "e1874c0b390105008877665544332211030000000000000007000000000000006162");
  wire::put_message_credit(credit, {4, 7});
  EXPECT_EQ(message_frame(T::kMessageCredit, 0, 0, credit.bytes()),
            "f45397a23a0105008877665544332211000000000000000004000000000000000700000000000000");
}

TEST(GoldenBytes, HelloAndItsAnswerHaveTheRecordedBytes) {
  Hello hello;
  hello.channel = Channel::kReduce;
  hello.stripe = 1;
  hello.stripes = 3;
  hello.source = 0x1112131415161718;
  hello.target = 0x2122232425262728;
  hello.listen_port = 29500;
  EXPECT_EQ(in_hex(encode(hello)),
            "4d4353540100022118171615141312112827262524232221000000003c730000");
  EXPECT_EQ(in_hex(encode(HelloAck{Verdict::kYield, Channel::kReduce, hello.target})),
            "4d435341010001022827262524232221");
  EXPECT_EQ(in_hex(encode_prefix(kGoodbyeLength)), "ffffffff");
}

}  // namespace
}  // namespace mcast
