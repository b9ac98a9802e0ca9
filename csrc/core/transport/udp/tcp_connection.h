// One TCP connection of a TcpStream: its descriptor, handshake progress and partial input.
// Mechanics only; which connection serves whom is TcpStream's decision.
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
    kConnecting,  // ours: connect() is running
    kChallenge,   // ours, guarded: waiting for the Challenge
    kHelloSent,   // ours: waiting for the HelloAck
    kOpen,
    kDead,  // closed; the object goes at the end of the current poll
  };
  enum class Io { kOk, kAgain, kEof, kError };

  // `poller` outlives the connection.
  TcpConnection(Epoll& poller, Fd fd, State initial)
      : state(initial), poller_(poller), fd_(std::move(fd)) {}
  ~TcpConnection() { close(); }

  // Options that every connection has; failures of single ones are harmless. `stripes`: of the
  // endpoint.
  static void configure(int fd, const UdpTransportOptions& options, size_t stripes);

  int fd() const noexcept { return fd_.get(); }
  Status watch(uint32_t events);  // starts to wait for `events`
  void want(uint32_t events);     // changes what is waited for
  void close();                   // deregisters, closes, state kDead

  // Ours: reads until `partial` holds `size` bytes, never more. kOk: complete.
  Io read_exactly(size_t size);
  // Writes a whole handshake message; the buffer of a fresh socket always has the room.
  bool write_message(ConstBytes bytes);
  // Seals what is in the queue as far as the kernel takes it. False: its keys are used up.
  bool write_sealed(SendQueue& queue);
  // Writes parts, returns how many bytes the kernel took; 0 with `error` 0 when it is full.
  size_t write(std::span<const iovec> vectors);
  // One read of up to scratch.size() bytes including the partial frame of the last read, then every
  // whole frame to `taker`, which also says whose turn it is (TcpGuard::scan) and where there is
  // room for one that is opened. kOk: something was read.
  template <typename Taker>
  Io read_frames(Bytes scratch, const Taker& taker, FrameScan& scan) {
    Io io = Io::kOk;
    const ConstBytes bytes = fill(scratch, io);
    if (io == Io::kOk) scan_all(bytes, taker, scan);
    return io;
  }
  // The same with a frame that had to wait, and what was read behind it.
  template <typename Taker>
  void read_held(const Taker& taker, FrameScan& scan) {
    const std::vector<std::byte> bytes = std::move(partial);
    partial.clear();
    scan_all(bytes, taker, scan);
  }
  size_t max_length() const { return max_frame(channel) + (numbered ? kFrameNumber : 0); }
  // Bytes written that the peer's kernel has not acknowledged, a FIN counts one.
  size_t unacknowledged() const;
  // Bytes per second that the path has lately carried when it had them; 0: not known.
  double rate();

  State state;
  PeerId peer = kNoPeer;
  Channel channel = Channel::kControl;
  uint8_t stripe = 0;
  bool numbered = false;      // frames begin with their number
  bool held = false;          // the frame that is next waits for one of another connection
  bool goodbye = false;       // received
  bool read_done = false;     // EOF received after a goodbye
  bool write_broken = false;  // a write failed; the read side tells how it ends
  bool fin_sent = false;
  int error = 0;  // errno of the last failure
  std::vector<std::byte> partial;
  std::unique_ptr<TcpGuard> guard;  // null: in clear
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
  std::optional<uint32_t> watched_;  // for these events
};

}  // namespace mcast
