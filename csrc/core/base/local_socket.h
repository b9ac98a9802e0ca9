// Unix sockets with a path: listening, and packets with file descriptors. A path crosses network
// name spaces, which an abstract name does not.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Listens at a path, nonblocking. Another process may replace the file by its own socket at any
// time; connections, and those waiting in the backlog, stay.
class LocalListener {
 public:
  struct How {
    int type = SOCK_STREAM;  // or SOCK_SEQPACKET
    int backlog = 16;
    mode_t mode = 0600;                    // of the file
    gid_t group = static_cast<gid_t>(-1);  // of the file; -1: the process's
    const char* who = "";                  // name of the listener ("aggregator"), for the error
    bool replace = false;                  // replace even a socket at which a process listens
  };
  // Replaces a socket file that exists. kUnavailable: another process listens at it.
  static Result<LocalListener> open(const std::string& path, const How& how);

  LocalListener() = default;
  ~LocalListener() { close(); }
  LocalListener(LocalListener&& other) noexcept = default;
  LocalListener& operator=(LocalListener&& other) noexcept;

  // Also removes the file, if it is still this socket's.
  void close() noexcept;
  // State of the file at the path.
  enum class File : uint8_t { kOwn, kGone, kOther };
  File file() const;

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  Fd fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Whose processes may listen at a socket that this process connects to: a client gives its tensors
// to whatever listens there.
class TrustedUser {
 public:
  // Root, the user of this process, and the owner of the socket's folder.
  TrustedUser() = default;
  // The value of the setting engine_user, a name or a number: that user and no other, root neither.
  // Empty: as above. kInvalidArgument: this host has no such user.
  static Result<TrustedUser> named(const std::string& user);

  // kInvalidArgument: another user's process listens at `path`, to which `fd` is connected.
  Status check(int fd, const std::string& path) const;

 private:
  std::optional<uid_t> only_;
};

// kUnavailable: nobody listens there (yet); a later try may find somebody. kInvalidArgument: a
// process listens there that is not `trusted`.
Result<Fd> connect_to(const std::string& path, int type, const TrustedUser& trusted = {});

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<Fd> descriptors;
};

// One end of a SOCK_SEQPACKET connection. Any threads may send() at once, which keeps no state: a
// packet is one sendmsg(). One thread at a time may call receive().
class LocalSocket {
 public:
  static constexpr size_t kMostPacket = size_t{64} << 10;  // bytes

  LocalSocket() = default;
  explicit LocalSocket(Fd fd) : fd_(std::move(fd)) {}

  // Waits up to `patience` for room. kUnavailable: there was none; other codes: the other end is
  // closed.
  Status send(ConstBytes packet, std::span<const int> descriptors, Nanos patience);

  enum class Got : uint8_t { kNothing, kPacket, kEnd };
  // Never waits. kEnd: also for a packet that is longer than kMostPacket, or empty.
  Got receive(Packet& out);

  // Process at the other end, as the kernel reports it; 0 if unknown.
  pid_t peer_pid() const;
  uid_t peer_uid() const;

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  // Ends both directions for both ends; the descriptor stays. Any thread.
  void shutdown() noexcept;
  // Only calls close(2): for the child of a fork.
  void abandon() noexcept { fd_.reset(); }

 private:
  Fd fd_;
  std::unique_ptr<std::byte[]> received_;  // kMostPacket bytes, allocated by the first receive()
};

}  // namespace mcast
