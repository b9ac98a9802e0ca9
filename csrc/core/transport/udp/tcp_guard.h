// The additional state of a guarded connection of a TcpStream: the connector's part of the
// handshake, then one direction each for sealing and opening, and the sealed bytes that the kernel
// has not taken. A frame is sealed once, from where it lies, as long as fewer than kSealAhead
// sealed bytes wait. Other frames wait as plaintext in the link's queue, framed as on an unguarded
// connection.
//
// Used by the lane's thread only.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/guarded/handshake.h"
#include "transport/guarded/records.h"
#include "transport/udp/send_queue.h"
#include "transport/udp/stream_wire.h"

namespace mcast {

class TcpGuard {
 public:
  static constexpr size_t kSealAhead = 64u << 10;

  std::optional<guarded::Connector> connector;  // connecting end, during the handshake
  // Ends the handshake: only records are sent and received from now on.
  Status start(crypto::StreamChains chains, const crypto::EpochLimits& limits) {
    return records_.start(std::move(chains), limits);
  }

  // Sealed bytes that are written next.
  ConstBytes waiting() const { return {out_.get() + begin_, end_ - begin_}; }
  bool full() const { return end_ - begin_ >= kSealAhead; }
  void written(size_t bytes);
  // Seals one frame, behind the bytes that wait. `number`: as its connection has it. Returns false
  // if the keys are used up or the library has failed.
  bool seal(std::optional<uint32_t> number, crypto::Parts body);
  void age(Nanos now) { records_.age(now); }
  // The same for the queue's frames, as many as may wait. `numbered`: as of the connection.
  bool seal_from(SendQueue& queue, bool numbered);

  // Like scan_frames(), but over records; `most`: largest frame in bytes. taker.its_turn(number) ->
  // bool: returns true if the frame of this number may be delivered now; if not, it is held here,
  // opened, because its number is not authenticated before. On numbered connections the frame given
  // to taker(frame) begins with its number. taker.room(): memory into which a frame can be opened.
  template <typename Taker>
  FrameScan scan(ConstBytes bytes, size_t most, bool numbered, const Taker& taker) {
    FrameScan scan;
    if (!held_.empty()) {
      if (!taker.its_turn(decode_prefix(held_.data()))) {
        scan.end = FrameScan::End::kHeld;
        return scan;
      }
      const std::vector<std::byte> frame = std::exchange(held_, {});
      if (!hand_on(frame, taker, scan)) return scan;
    }
    while (bytes.size() - scan.consumed >= kFramePrefix) {
      const ConstBytes left = bytes.subspan(scan.consumed);
      const uint32_t length = crypto::record_length(decode_prefix(left.data()));
      if (!crypto::record_length_allowed(length, most, numbered)) {
        scan.end = FrameScan::End::kViolation;
        scan.bad_length = length;
        return scan;
      }
      if (left.size() < kFramePrefix + length) return scan;
      const std::optional<ConstBytes> frame =
          open(numbered, left.first(kFramePrefix + length), taker.room());
      if (!frame) {
        scan.end = FrameScan::End::kForged;
        return scan;
      }
      scan.consumed += kFramePrefix + length;
      if (frame->empty()) {
        scan.end =
            scan.consumed == bytes.size() ? FrameScan::End::kGoodbye : FrameScan::End::kViolation;
        scan.bad_length = kGoodbyeLength;
        return scan;
      }
      if (numbered && !taker.its_turn(decode_prefix(frame->data()))) {
        held_.assign(frame->begin(), frame->end());
        scan.end = FrameScan::End::kHeld;
        return scan;
      }
      if (!hand_on(*frame, taker, scan)) return scan;
    }
    return scan;
  }

 private:
  // Returns the record's frame; an empty frame is the goodbye, an empty optional means forged.
  std::optional<ConstBytes> open(bool numbered, ConstBytes record, Bytes scratch);

  // Returns false if the scan ends behind it.
  template <typename Taker>
  static bool hand_on(ConstBytes frame, const Taker& taker, FrameScan& scan) {
    ++scan.frames;
    if (taker(frame) != kTakeStop) return true;
    scan.end = FrameScan::End::kStopped;
    return false;
  }

  // Makes room for `bytes` bytes behind those that wait.
  std::byte* make_room(size_t bytes);

  guarded::Records records_;
  std::unique_ptr<std::byte[]> out_;  // not a vector, which would write zeroes first
  size_t capacity_ = 0, begin_ = 0, end_ = 0;
  std::vector<std::byte> held_;  // a frame with its number, until it is next in order
};

}  // namespace mcast
