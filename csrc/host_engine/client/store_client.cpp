// The engine transfers the bytes, and replies itself only if the store cannot be reached. A
// connection that has failed in the middle of a request returns that error from then on, because it
// is unknown what the store has done.
#include "host_engine/client/store_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/local_socket.h"

namespace mcast {
namespace {

constexpr Nanos kStoreLook = 100 * kMilli;
constexpr const char* kStoreSuffix = ".store";

std::string listed(const std::vector<std::string>& keys) {
  constexpr size_t kMostShown = 5;
  std::string text;
  for (size_t i = 0; i < std::min(keys.size(), kMostShown); i++) {
    text += (i == 0 ? "" : ", ") + keys[i];
  }
  return text + (keys.size() > kMostShown ? ", ..." : "");
}

}  // namespace

StoreClient::StoreClient(Where where, Fd fd)
    : where_(std::move(where)), pid_(::getpid()), fd_(std::move(fd)) {}

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const Where& where, Nanos patience) {
  const Nanos deadline = patience == 0 ? kNever : later(monotonic_now(), patience);
  const auto named = [](const Status& why) {
    return why.with_context("store of the job through the engine of this host");
  };
  const auto trusted = TrustedUser::named(where.user);
  if (!trusted.ok()) return named(trusted.status());
  for (;;) {
    Result<Fd> fd = connect_to(where.engine + kStoreSuffix, SOCK_STREAM, *trusted);
    if (fd.ok()) {
      std::unique_ptr<StoreClient> client(new StoreClient(where, std::move(fd).value()));
      const Nanos left = patience == 0 ? 0 : std::max<Nanos>(deadline - monotonic_now(), kMilli);
      const auto opened = client->ask(
          {wire::StoreOp::kOpen,
           {where.host, std::to_string(where.port), where.name, std::to_string(left / kMilli)}},
          nullptr);
      if (!opened.ok()) return opened.status();
      return client;
    }
    const bool later = fd.status().code() == Code::kUnavailable;
    if (!later || monotonic_now() >= deadline) return named(fd.status());
    ::usleep(static_cast<useconds_t>(kStoreLook / kMicro));
  }
}

Status StoreClient::fail(Status why) {
  failure_ =
      why.with_context("store of the job at " + where_.host + ":" + std::to_string(where_.port));
  fd_.reset();
  return failure_;
}

Result<std::vector<std::string>> StoreClient::ask(const wire::StoreRecord& question,
                                                  const std::function<bool()>& interrupted) {
  if (::getpid() != pid_) {
    return Status(
        Code::kClosed,
        "this store belongs to the parent process; the child process must create its own");
  }
  std::string out = wire::bytes_of(question);
  if (out.empty())
    return Status(Code::kResourceExhausted, "the request is longer than a store's record may be");
  const std::lock_guard<std::mutex> held(mutex_);
  if (!failure_.ok()) return failure_;
  for (;;) {
    if (auto answer = in_.next()) {
      if (answer->op == wire::StoreOp::kDone) return std::move(answer->parts);
      if (answer->op == wire::StoreOp::kLate) {
        return Status(Code::kTimeout, "store of the job at " + where_.host + ": nobody has set " +
                                          listed(answer->parts));
      }
      if (answer->op != wire::StoreOp::kFailed || answer->parts.size() != 1) {
        return fail(Status(Code::kInternal, "its answer cannot be read"));
      }
      const Status why(Code::kUnavailable, answer->parts[0]);
      return question.op == wire::StoreOp::kOpen ? fail(why) : why;
    }
    if (in_.broken()) return fail(Status(Code::kInternal, "its answer cannot be read"));
    pollfd one{fd_.get(), static_cast<short>(POLLIN | (out.empty() ? 0 : POLLOUT)), 0};
    const int ready = ::poll(&one, 1, static_cast<int>(kStoreLook / kMilli));
    if (ready <= 0 || one.revents == 0) {
      if (interrupted && interrupted()) return fail(Status(Code::kAborted, "interrupted"));
      continue;
    }
    if (!out.empty() && (one.revents & POLLOUT) != 0) {
      const ssize_t sent = ::send(fd_.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) out.erase(0, static_cast<size_t>(sent));
    }
    if ((one.revents & ~POLLOUT) == 0) continue;
    std::array<char, 65536> piece;
    const ssize_t got = ::recv(fd_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got > 0) in_.feed({piece.data(), static_cast<size_t>(got)});
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return fail(Status(Code::kPeerLost,
                         "the connection has ended; the engine there, or the one "
                         "of this host, has ended or cut it off"));
    }
  }
}

}  // namespace mcast
