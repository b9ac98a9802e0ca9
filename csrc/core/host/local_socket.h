// Unix sockets that are found by a path: listening at one, and packets with descriptors of files
// over one. A path crosses network name spaces, which an abstract name does not.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Listens at `path`, in the place of a socket that nobody listens at, nonblocking. `type`:
// SOCK_STREAM or SOCK_SEQPACKET; `mode` of the file; `who` listens ("aggregator"), for the error.
// kUnavailable: another process listens there.
Result<Fd> listen_at(const std::string& path, int type, int backlog, mode_t mode, const char* who);
// Also removes the file.
void stop_listening(Fd& listener, const std::string& path);

// kUnavailable: nobody listens there (yet); a later try may find somebody.
Result<Fd> connect_to(const std::string& path, int type);

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<Fd> descriptors;
};

// One end of a SOCK_SEQPACKET connection. Any threads may send() at once, which keeps nothing: a
// packet is one sendmsg(). receive() is called by one thread at a time.
class LocalSocket {
 public:
  static constexpr size_t kMostPacket = size_t{64} << 10;  // bytes

  LocalSocket() = default;
  explicit LocalSocket(Fd fd) : fd_(std::move(fd)) {}

  // Waits up to `patience` for room. kUnavailable: there was none; another code: the other end is
  // gone.
  Status send(ConstBytes packet, std::span<const int> descriptors, Nanos patience);

  enum class Got : uint8_t { kNothing, kPacket, kEnd };
  // Never waits. kEnd: also of a packet that is longer than kMostPacket, or empty.
  Got receive(Packet& out);

  // Who is at the other end, as the kernel knows it; 0 if it does not.
  pid_t peer_pid() const;
  uid_t peer_uid() const;

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  // Ends both directions for both ends; the descriptor stays. Any thread.
  void shutdown() noexcept;
  // close(2) and nothing else: in the child of a fork.
  void abandon() noexcept { fd_.reset(); }

 private:
  Fd fd_;
  std::unique_ptr<std::byte[]> received_;  // kMostPacket bytes, from the first receive() on
};

}  // namespace mcast
