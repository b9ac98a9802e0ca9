// Sleeping: every completion queue is armed and looked at once more; then epoll waits for the
// completion channel, rdma_cm's events, the device's asynchronous events and wake-ups. A sleep
// costs an interrupt and a system call, far more than a message. So if cores are free, the queues
// are first polled for a moment, unarmed, as long as that has recently been successful.
//
// Fork: all lanes share librdmacm's context of a device, which cannot be made again, so a child
// closes the descriptors that it inherited and has no verbs (the viability check says so); exec'd
// programs do have verbs.
#include "transport/verbs/verbs_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "transport/registry.h"
#include "transport/verbs/endpoints.h"

namespace mcast::verbs {
namespace {

constexpr Nanos kLongestSpin = 50 * kMicro, kShortestSpin = 2 * kMicro;
// Lanes and the threads that wait for them need cores: on a host with fewer than this no lane
// spins.
constexpr unsigned kCoresToSpin = 4;

std::atomic<pid_t> g_user{0};       // the process that has used verbs
std::atomic<bool> g_forked{false};  // this process is a fork of it

Nanos clock_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

VerbsTransport::~VerbsTransport() = default;

Status VerbsTransport::open(const VerbsOptions& options) {
  if (g_forked) {
    return Status(Code::kUnavailable,
                  "this process is a fork of one that uses verbs; start it with exec "
                  "(multiprocessing: spawn)");
  }
  g_user = ::getpid();
  Status status = cm_.open();
  if (status.ok()) status = device_.open(options, cm_.get());
  if (status.ok()) status = datagram_.open(options);
  if (status.ok()) status = stream_.open(options);
  if (status.ok()) status = poller_.open();
  if (!status.ok()) return status;
  wake_fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_.valid()) return Status::system(errno, "eventfd");
  status = poller_.add(wake_fd_.get(), EPOLLIN, &wake_fd_);
  if (status.ok()) status = poller_.add(device_.completions()->fd, EPOLLIN, &datagram_);
  if (status.ok()) status = poller_.add(cm_.fd(), EPOLLIN, &cm_);
  if (status.ok()) status = poller_.add(device_.context()->async_fd, EPOLLIN, &device_);
  may_spin_ =
      (options.cores != 0 ? options.cores : std::thread::hardware_concurrency()) >= kCoresToSpin;
  spin_ = may_spin_ ? kShortestSpin : 0;
  return status;
}

bool VerbsTransport::ready() {
  return datagram_.pending() || datagram_.completions().ready() || stream_.ready();
}

bool VerbsTransport::quiet() {
  const bool datagrams = !datagram_.pending() && datagram_.completions().arm();
  const bool streams = stream_.arm();
  return datagrams && streams;
}

void VerbsTransport::drain_events() {
  ibv_cq* cq = nullptr;
  while (device_.api().get_cq_event(device_.completions(), &cq) == 0) {
    device_.api().ack_cq_events(cq, 1);
  }
}

void VerbsTransport::wait(Nanos timeout) {
  timeout = std::min({timeout, stream_.until_timer(), datagram_.until_timer()});
  if (timeout <= 0 || ready()) return;
  std::array<epoll_event, 4> events;
  size_t n = poller_.wait(events, 0);
  if (n == 0 && spin_ > 0) {
    const Nanos until = clock_now() + std::min(timeout, spin_);
    bool hit = false;
    while (!(hit = ready()) && clock_now() < until) {
    }
    spin_ = std::clamp(hit ? 2 * spin_ : spin_ / 2, kShortestSpin, kLongestSpin);
    if (hit) return;
  }
  if (n == 0 && !quiet()) return;
  if (n == 0) n = poller_.wait(events, timeout);
  for (size_t i = 0; i < n; ++i) {
    if (events[i].data.ptr == &wake_fd_) {
      uint64_t count = 0;
      while (::read(wake_fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
      }
    } else if (events[i].data.ptr == &datagram_) {
      drain_events();
    }
  }
}

void VerbsTransport::wake() noexcept {
  const int saved = errno;
  const uint64_t one = 1;
  while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

void VerbsTransport::abandon_after_fork() noexcept {
  datagram_.abandon();
  stream_.abandon();
  const bool child = ::getpid() != g_user;
  if (child && device_.context() != nullptr) {
    g_forked = true;
    // Shared by the lanes: the first of them closes it.
    ibv_context* const context = device_.context();
    for (int* fd : {&context->async_fd, &context->cmd_fd}) {
      if (*fd >= 0) ::close(*fd);
      *fd = -1;
    }
  }
  device_.abandon();
  cm_.abandon();
  wake_fd_.reset();
  poller_.abandon();
}

std::string VerbsTransport::describe() const {
  return "verbs " + device_.describe() + " receives " +
         std::to_string(datagram_.receive_entries()) + " sends " + std::to_string(kSendEntries) +
         " groups " +
         std::to_string(std::min<size_t>(
             kMaxGroups, static_cast<size_t>(std::max(0, device_.attr().max_mcast_grp))));
}

Result<std::unique_ptr<VerbsTransport>> make_transport(Api& api, const VerbsOptions& options) {
  auto transport = std::make_unique<VerbsTransport>(api);
  if (Status status = transport->open(options); !status.ok()) return status;
  return transport;
}

}  // namespace mcast::verbs

namespace mcast {

Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options) {
  auto api = verbs::system_api();
  if (!api.ok()) return api.status();
  auto made = verbs::make_transport(**api, options);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Transport>(std::move(made).value());
}

Status verbs_viable(const VerbsOptions& options) {
  auto api = verbs::system_api();
  if (!api.ok()) return api.status();
  verbs::CmChannel channel(**api);
  if (Status status = channel.open(); !status.ok()) return status;
  verbs::Device device(**api);
  return device.open(options, channel.get());
}

TransportType verbs_transport_type() {
  return {"verbs", "an RDMA device", false,
          [](const Config& config) { return verbs_viable(VerbsOptions::from(config)); },
          [](const Config& config, LaneId lane, std::shared_ptr<const crypto::Identity> identity) {
            VerbsOptions options = VerbsOptions::from(config, index_of(lane));
            options.identity = std::move(identity);
            return make_verbs_transport(options);
          }};
}

}  // namespace mcast
