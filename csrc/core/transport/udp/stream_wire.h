// Format of the bytes on a stream connection: a Hello and its reply, then frames. Pure functions
// over bytes.
//
//   Hello (32 bytes, connector):  "MCST" version:u16 channel:u8 stripe:u8 source:u64 target:u64
//                                 zero:u32 listen port:u16 zero:u16
//   HelloAck (16 bytes, acceptor): "MCSA" version:u16 verdict:u8 channel:u8 uid:u64
//   frame: length:u32, then that many bytes; length 0xffffffff is the goodbye and the last one
//
// stripe: the low four bits give the interface of the stripe that this connection is for, the high
// four bits the number of interfaces, less one. If there are several, a frame of a bulk channel
// begins with its number (u32, counted per peer and channel), and the reader hands frames on in
// order of their numbers.
//
// Integers are little-endian. A connector listens at the address from which it connects.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "transport/transport.h"

namespace mcast {

inline constexpr uint16_t kStreamVersion = 1;
inline constexpr size_t kHelloSize = 32;
inline constexpr size_t kHelloAckSize = 16;
inline constexpr size_t kFramePrefix = 4;
inline constexpr uint32_t kGoodbyeLength = 0xffffffff;

constexpr size_t max_frame(Channel channel) noexcept {
  return channel == Channel::kControl ? kMaxControlFrame : kMaxBulkFrame;
}

struct Hello {
  Channel channel = Channel::kControl;
  uint8_t stripe = 0, stripes = 1;
  uint64_t source = 0;       // uid of the connector
  uint64_t target = 0;       // uid the connector wants to reach
  uint16_t listen_port = 0;  // at which the connector itself can be reached

  // Returns true if it is meant for endpoint `uid`, which has `interfaces` interfaces.
  bool is_for(uint64_t uid, size_t interfaces) const {
    return target == uid && source != uid && source != 0 && stripes <= interfaces;
  }
};

enum class Verdict : uint8_t {
  kAccepted = 0,
  kYield = 1,  // the connection that the acceptor itself opened is used
};

struct HelloAck {
  Verdict verdict = Verdict::kAccepted;
  Channel channel = Channel::kControl;
  uint64_t uid = 0;  // of the acceptor
};

std::array<std::byte, kHelloSize> encode(const Hello& hello) noexcept;
std::array<std::byte, kHelloAckSize> encode(const HelloAck& ack) noexcept;
// Returns an empty optional if magic, version, channel or verdict is wrong.
std::optional<Hello> decode_hello(std::span<const std::byte, kHelloSize> bytes) noexcept;
std::optional<HelloAck> decode_hello_ack(std::span<const std::byte, kHelloAckSize> bytes) noexcept;

// The first 32 and 16 bytes of a guarded Hello and its reply: these have another version, and end
// with the fields of crypto/handshake.h. They are trusted only after crypto/handshake.h has checked
// them.
std::optional<Hello> decode_guarded_hello(std::span<const std::byte, kHelloSize> bytes) noexcept;
std::optional<HelloAck> decode_guarded_ack(
    std::span<const std::byte, kHelloAckSize> bytes) noexcept;

std::array<std::byte, kFramePrefix> encode_prefix(uint32_t length) noexcept;
uint32_t decode_prefix(const std::byte* bytes) noexcept;

// Maximum number of interfaces of a stripe, and the size in bytes of a frame's number.
inline constexpr size_t kMaxStripe = 8;
inline constexpr size_t kFrameNumber = 4;

// Converts the addresses of a stripe's endpoints to one StreamAddress and back. host: the first
// address, then "+address:port" for each further one.
StreamAddress stripe_address(uint64_t uid, std::span<const Endpoint> endpoints);
// kInvalidArgument unless all are numeric.
Result<std::vector<Endpoint>> stripe_endpoints(const StreamAddress& address);
// Number of endpoints in the address.
size_t stripe_count(const StreamAddress& address) noexcept;

// For messages: "peer 10.0.0.1:4711", "peer [fd00::1]:4711", the given endpoint of the stripe.
std::string endpoint_text(const StreamAddress& address, size_t stripe = 0);

// Result for one frame: the scan stops after it, continues, or stops before it.
enum FrameTake : int { kTakeStop = 0, kTakeMore = 1, kTakeHold = 2 };

struct FrameScan {
  enum class End { kNeedMore, kStopped, kHeld, kGoodbye, kViolation, kForged };
  End end = End::kNeedMore;
  size_t consumed = 0;  // bytes of whole frames (and of the goodbye)
  size_t frames = 0;
  uint32_t bad_length = 0;  // kViolation; kGoodbye when bytes follow the goodbye
};

// Cuts `bytes` into frames and calls on_frame(ConstBytes) -> FrameTake, or bool, for each.
template <typename OnFrame>
FrameScan scan_frames(ConstBytes bytes, size_t max_length, OnFrame&& on_frame) {
  FrameScan scan;
  while (bytes.size() - scan.consumed >= kFramePrefix) {
    const std::byte* at = bytes.data() + scan.consumed;
    const uint32_t length = decode_prefix(at);
    if (length == kGoodbyeLength) {
      scan.consumed += kFramePrefix;
      scan.end =
          scan.consumed == bytes.size() ? FrameScan::End::kGoodbye : FrameScan::End::kViolation;
      scan.bad_length = kGoodbyeLength;
      return scan;
    }
    if (length == 0 || length > max_length) {
      scan.end = FrameScan::End::kViolation;
      scan.bad_length = length;
      return scan;
    }
    if (bytes.size() - scan.consumed < kFramePrefix + length) return scan;
    const int take = on_frame(ConstBytes{at + kFramePrefix, length});
    if (take == kTakeHold) {
      scan.end = FrameScan::End::kHeld;
      return scan;
    }
    scan.consumed += kFramePrefix + length;
    ++scan.frames;
    if (take == kTakeStop) {
      scan.end = FrameScan::End::kStopped;
      return scan;
    }
  }
  return scan;
}

}  // namespace mcast
