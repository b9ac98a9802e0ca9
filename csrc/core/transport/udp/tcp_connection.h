// One TCP connection of a TcpStream: its descriptor, handshake progress and partial input.
// Mechanics only; TcpStream decides which connection serves which peer.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/udp/busy_rate.h"
#include "transport/udp/options.h"
#include "transport/udp/send_queue.h"
#include "transport/udp/socket.h"
#include "transport/udp/stream_wire.h"
#include "transport/udp/tcp_guard.h"

namespace mcast {

class TcpConnection {
 public:
  enum class State {
    kConnecting,  // opened here: connect() is running
    kChallenge,   // opened here, guarded: waiting for the Challenge
    kHelloSent,   // opened here: waiting for the HelloAck
    kOpen,
    kDead,  // closed; the object is freed at the end of the current poll
  };
  enum class Io { kOk, kAgain, kEof, kError };

  // `poller` outlives the connection.
  TcpConnection(Epoll& poller, Fd fd, State initial)
      : state(initial), poller_(poller), fd_(std::move(fd)) {}
  ~TcpConnection() { close(); }

  // Sets the options that every connection has; a failure of one of them is harmless. `stripes`: of
  // the endpoint.
  static void configure(int fd, const IpAddress& peer, const UdpTransportOptions& options,
                        size_t stripes);

  int fd() const noexcept { return fd_.get(); }
  Status watch(uint32_t events);  // starts to wait for `events`
  void want(uint32_t events);     // changes the awaited events
  void close();                   // deregisters, closes, state kDead

  // For connections opened here: reads until `partial` holds `size` bytes, never more. kOk:
  // complete.
  Io read_exactly(size_t size);
  // Writes a whole handshake message; the buffer of a fresh socket always has the room.
  bool write_message(ConstBytes bytes);
  // Seals queued bytes as long as the kernel takes them. Returns false if its keys are used up.
  bool write_sealed(SendQueue& queue);
  // Writes parts and returns the number of bytes that the kernel took; 0 with `error` 0 if it is
  // full.
  size_t write(std::span<const iovec> vectors);
  // Reads once, up to scratch.size() bytes including the partial frame of the last read, then gives
  // every whole frame to `taker`. The taker also decides whether a frame is next in order
  // (TcpGuard::scan) and provides room for an opened one. kOk: something was read.
  template <typename Taker>
  Io read_frames(Bytes scratch, const Taker& taker, FrameScan& scan) {
    Io io = Io::kOk;
    const ConstBytes bytes = fill(scratch, io);
    if (io == Io::kOk) scan_all(bytes, taker, scan);
    return io;
  }
  // The same for a frame that had to wait, and the bytes that were read behind it.
  template <typename Taker>
  void read_held(const Taker& taker, FrameScan& scan) {
    const std::vector<std::byte> bytes = std::move(partial);
    partial.clear();
    scan_all(bytes, taker, scan);
  }
  size_t max_length() const { return max_frame(channel) + (numbered ? kFrameNumber : 0); }
  // Written bytes that the peer's kernel has not acknowledged; a FIN counts one.
  size_t unacknowledged() const;
  // Bytes per second that the path has recently carried while it had bytes to carry; 0 if not
  // known.
  double rate();

  State state;
  PeerId peer = kNoPeer;
  Channel channel = Channel::kControl;
  uint8_t stripe = 0;
  bool numbered = false;      // frames begin with their number
  bool held = false;          // the next frame waits for one of another connection
  bool goodbye = false;       // received
  bool read_done = false;     // EOF received after a goodbye
  bool write_broken = false;  // a write failed; the read side reports how the connection ends
  bool fin_sent = false;
  int error = 0;  // errno of the last failure
  std::vector<std::byte> partial;
  std::unique_ptr<TcpGuard> guard;  // null: not encrypted
  size_t index = 0;                 // in TcpStream's list

 private:
  template <typename Taker>
  void scan_all(ConstBytes bytes, const Taker& taker, FrameScan& scan) {
    scan = guard == nullptr ? scan_frames(bytes, max_length(), taker)
                            : guard->scan(bytes, max_frame(channel), numbered, taker);
    const ConstBytes rest = bytes.subspan(scan.consumed);
    partial.assign(rest.begin(), rest.end());
    held = scan.end == FrameScan::End::kHeld;
  }
  ConstBytes fill(Bytes scratch, Io& io);

  Epoll& poller_;
  Fd fd_;
  BusyRate rate_;
  std::optional<uint32_t> watched_;  // the events that are watched, if any
};

}  // namespace mcast
