// A process that was killed leaves its socket's file behind; connecting to it shows whether a
// process still listens. A new socket first listens under another name and is then renamed, so that
// the path always leads to a socket, and never to one with the wrong mode. A packet's descriptors
// arrive with its first byte, so one recvmsg() gets all of both; the kernel closes descriptors
// beyond the expected few.
#include "base/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/users.h"

namespace mcast {
namespace {

constexpr size_t kMostDescriptors = 4;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof out.sun_path) {
    return Status(Code::kInvalidArgument, "the path of a socket must have 1 to 107 bytes: " + path);
  }
  std::memcpy(out.sun_path, path.data(), path.size());
  return out;
}

const sockaddr* plain(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Fd unix_socket(int type) { return Fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

bool somebody_listens(const sockaddr_un& address, int type) {
  const Fd fd = unix_socket(type);
  return ::connect(fd.get(), plain(address), sizeof address) == 0 || errno == EAGAIN ||
         errno == EPROTOTYPE;
}

// A name in the same folder, for a socket that is renamed once it listens. As short as possible: an
// address has room for 107 bytes.
std::string name_beside(const std::string& path) {
  static std::atomic<unsigned> number{0};
  return path.substr(0, path.rfind('/') + 1) + "." + std::to_string(::getpid()) + "." +
         std::to_string(number++ % 100);
}

ucred credentials(int fd) {
  ucred who{0, static_cast<uid_t>(-1), 0};
  socklen_t size = sizeof who;
  (void)::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
  return who;
}

void take_descriptors(msghdr& message, std::vector<Fd>& out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
      out.emplace_back(fd);
    }
  }
}

}  // namespace

Result<LocalListener> LocalListener::open(const std::string& path, const How& how) {
  const Result<sockaddr_un> address = address_of(path);
  if (!address.ok()) return address.status();
  if (!how.replace && somebody_listens(*address, how.type)) {
    return Status(Code::kUnavailable, std::string("another ") + how.who + " answers at " + path);
  }
  const auto cannot = [&path](int error) {
    return Status::system(error, "cannot listen at " + path);
  };
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) return cannot(EEXIST);
  const std::string beside = name_beside(path);
  const Result<sockaddr_un> place = address_of(beside);
  if (!place.ok()) return place.status();
  (void)::unlink(beside.c_str());
  LocalListener made;
  made.fd_ = unix_socket(how.type);
  made.path_ = beside;
  const int fd = made.fd_.get();
  if (::bind(fd, plain(*place), sizeof(sockaddr_un)) != 0) return cannot(errno);
  const bool listens = ::lstat(beside.c_str(), &there) == 0 &&
                       ::lchown(beside.c_str(), static_cast<uid_t>(-1), how.group) == 0 &&
                       ::chmod(beside.c_str(), how.mode) == 0 && ::listen(fd, how.backlog) == 0;
  const int error = errno;
  made.device_ = there.st_dev;
  made.inode_ = there.st_ino;
  if (!listens) return cannot(error);
  if (::rename(beside.c_str(), path.c_str()) != 0) return cannot(errno);
  made.path_ = path;
  return made;
}

LocalListener& LocalListener::operator=(LocalListener&& other) noexcept {
  close();
  fd_ = std::move(other.fd_);
  path_ = std::move(other.path_);
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

void LocalListener::close() noexcept {
  if (!fd_.valid()) return;
  fd_.reset();
  if (file() == File::kOwn) (void)::unlink(path_.c_str());
}

LocalListener::File LocalListener::file() const {
  struct stat there {};
  if (::lstat(path_.c_str(), &there) != 0) return File::kGone;
  return there.st_dev == device_ && there.st_ino == inode_ ? File::kOwn : File::kOther;
}

Result<TrustedUser> TrustedUser::named(const std::string& user) {
  TrustedUser made;
  if (user.empty()) return made;
  made.only_ = find_user(user);
  if (made.only_) return made;
  return Status(Code::kInvalidArgument,
                "setting engine_user (MCAST_ENGINE_USER): this host has no "
                "user \"" +
                    user + "\"; in a container without that name give its number");
}

Status TrustedUser::check(int fd, const std::string& path) const {
  const uid_t uid = credentials(fd).uid;
  const std::string there = user_text(uid) + " listens at " + path;
  if (only_) {
    if (uid == *only_) return {};
    const std::string wanted = user_text(*only_);
    return Status(Code::kInvalidArgument,
                  there + ", the setting engine_user (MCAST_ENGINE_USER) expects " + wanted +
                      ": it may pose as the engine; start the engine as " + wanted +
                      ", or name the user that runs it in MCAST_ENGINE_USER");
  }
  const uid_t own = ::geteuid();
  if (uid == 0 || uid == own) return {};
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat owned {};
  if (::stat(folder.c_str(), &owned) != 0) return Status::system(errno, "folder of " + path);
  if (owned.st_uid == uid) return {};
  return Status(Code::kInvalidArgument,
                there + ", expected root, " + user_text(own) + " as this process, or " +
                    user_text(owned.st_uid) +
                    ", who owns the folder: it may pose as the engine; give the folder to the "
                    "engine's user, or name that user in MCAST_ENGINE_USER (setting engine_user)");
}

Result<Fd> connect_to(const std::string& path, int type, const TrustedUser& trusted) {
  const Result<sockaddr_un> address = address_of(path);
  if (!address.ok()) return address.status();
  Fd fd = unix_socket(type);
  if (!fd.valid()) return Status::system(errno, "socket");
  if (::connect(fd.get(), plain(*address), sizeof(sockaddr_un)) == 0) {
    if (Status checked = trusted.check(fd.get(), path); !checked.ok()) return checked;
    return fd;
  }
  const int error = errno;
  const bool nobody = error == ENOENT || error == ECONNREFUSED || error == EAGAIN;
  const Status why = Status::system(error, "cannot connect to " + path);
  return nobody ? Status(Code::kUnavailable, why.message()) : why;
}

Status LocalSocket::send(ConstBytes packet, std::span<const int> descriptors, Nanos patience) {
  iovec io{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size() * sizeof(int));
  }
  for (bool waited = false;; waited = true) {
    if (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Status::system(errno, "local socket");
    if (waited || patience <= 0) return Status(Code::kUnavailable, "local socket: no room");
    pollfd room{fd_.get(), POLLOUT, 0};
    (void)::poll(&room, 1, static_cast<int>(std::min<Nanos>(patience / kMilli, 1 << 30)));
  }
}

LocalSocket::Got LocalSocket::receive(Packet& out) {
  out.descriptors.clear();
  out.bytes.clear();
  if (!received_) received_ = std::make_unique_for_overwrite<std::byte[]>(kMostPacket);
  iovec io{received_.get(), kMostPacket};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Got::kNothing : Got::kEnd;
  take_descriptors(message, out.descriptors);
  if (got == 0 || (message.msg_flags & MSG_TRUNC) != 0) return Got::kEnd;
  out.bytes.assign(received_.get(), received_.get() + got);
  return Got::kPacket;
}

pid_t LocalSocket::peer_pid() const { return credentials(fd_.get()).pid; }
uid_t LocalSocket::peer_uid() const { return credentials(fd_.get()).uid; }

void LocalSocket::shutdown() noexcept {
  if (fd_.valid()) (void)::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace mcast
