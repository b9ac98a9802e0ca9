// Holds the two endpoints and the sleep. The stream endpoint has an epoll instance of its own,
// which is one descriptor of this one: wait() only learns THAT there is something to do; receive()
// and poll() then find out the details.
#include "transport/udp/udp_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transport/registry.h"
#include "transport/udp/own_addresses.h"

namespace mcast {
namespace {

// Retry interval when the kernel was out of memory; no event announces the end of that.
constexpr Nanos kMemoryRetry = kMilli;
// Any group works: only the join is tried, no datagram is sent.
constexpr MulticastAddress kTrialAddress{0x4d4353, 9, false};

}  // namespace

UdpTransport::~UdpTransport() = default;

Status UdpTransport::open(const UdpTransportOptions& options) {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  auto loopback = find_loopback(*interfaces);
  if (!loopback.ok()) return loopback.status();
  for (Interface& i : *interfaces) {
    const IpAddress v6 = i.first_address(true);
    if (options.ipv6 && v6.known()) i.address = v6;
  }
  auto chosen = choose_interfaces(*interfaces, options.interface, options.lane);
  if (!chosen.ok()) return chosen.status();
  return open_on(options, std::move(chosen->stripe), *loopback);
}

Status UdpTransport::open_on(const UdpTransportOptions& options, std::vector<Interface> stripe,
                             const Interface& own_loopback) {
  options_ = options;
  interfaces_ = std::move(stripe);
  // One interface has one address.
  const Interface& loopback =
      interfaces_[0].index == own_loopback.index ? interfaces_[0] : own_loopback;
  if (Status status = poller_.open(); !status.ok()) return status;
  wake_fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_.valid()) return Status::system(errno, "eventfd");
  Status status = poller_.add(wake_fd_.get(), EPOLLIN, &wake_fd_);
  if (status.ok()) status = restrict_sources();
  if (status.ok()) status = datagram_.open(options, interfaces_, loopback);
  if (status.ok()) status = stream_.open(options, interfaces_, loopback);
  if (status.ok()) status = poller_.add(stream_.poll_fd(), EPOLLIN, &stream_);
  return status.with_context("interface " + names());
}

// Ranks of this host may use any of its interfaces.
Status UdpTransport::restrict_sources() {
  if (options_.allow.empty()) return {};
  auto all = list_interfaces();
  if (!all.ok()) return all.status();
  auto made = SourceFilter::make(options_.allow, *all);
  if (!made.ok()) return made.status();
  allow_ = std::move(made).value();
  datagram_.restrict_to(allow_);
  stream_.restrict_to(allow_);
  return {};
}

std::string UdpTransport::names() const {
  std::string text;
  for (const Interface& i : interfaces_) text += (text.empty() ? "" : "+") + i.name;
  return text;
}

void UdpTransport::wait(Nanos timeout) {
  timeout = std::min(timeout, stream_.until_timer());
  if (datagram_.sender().needs_retry()) timeout = std::min(timeout, kMemoryRetry);
  std::array<epoll_event, 8> events;
  const size_t n = poller_.wait(events, timeout);
  for (size_t i = 0; i < n; ++i) {
    if (events[i].data.ptr == &wake_fd_) {
      uint64_t count = 0;
      while (::read(wake_fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
      }
    } else if ((events[i].events & EPOLLERR) != 0) {
      datagram_.clear_errors();  // otherwise each wait would return immediately
    }
  }
}

void UdpTransport::wake() noexcept {
  const int saved = errno;
  const uint64_t one = 1;
  while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

bool UdpTransport::has_its_address() const {
  const auto now = list_interfaces();
  if (!now.ok()) return true;  // unknown: assume that it still has the address
  return std::all_of(interfaces_.begin(), interfaces_.end(), [&](const Interface& ours) {
    return std::any_of(now->begin(), now->end(), [&](const Interface& i) {
      return std::any_of(i.addresses.begin(), i.addresses.end(),
                         [&](const IpAddress& a) { return a == ours.address; });
    });
  });
}

void UdpTransport::abandon_after_fork() noexcept {
  // Each open descriptor is watched by one of the two instances. (The stream's instance is watched
  // by the other and is closed twice, which is harmless because no descriptor is opened in
  // between.) The owners of the descriptors may be in an inconsistent state, so do not use them.
  datagram_.abandon();
  stream_.abandon();
  poller_.abandon_watched();
  wake_fd_.forget();  // others may still call wake()
}

std::string UdpTransport::describe() const {
  const size_t rcvbuf = datagram_.receiver().granted();
  const size_t sndbuf = datagram_.sender().sndbuf();
  const auto asked = [](size_t granted, uint64_t ask, const char* limit) {
    // The kernel reports twice the grant.
    if (granted / 2 >= ask) return std::string();
    return " (asked " + std::to_string(ask) + "; raise " + limit + ")";
  };
  std::string addresses;
  uint64_t mtu = options_.max_mtu;
  for (const Interface& i : interfaces_) {
    addresses += (addresses.empty() ? "" : "+") + i.address.text();
    mtu = std::min<uint64_t>(mtu, i.mtu);
  }
  std::string text = "udp " + names() + " " + addresses + " mtu " + std::to_string(mtu) +
                     " rcvbuf " + std::to_string(rcvbuf) +
                     asked(rcvbuf, options_.rcvbuf, "net.core.rmem_max") + " sndbuf " +
                     std::to_string(sndbuf) + asked(sndbuf, options_.sndbuf, "net.core.wmem_max");
  text += datagram_stats_.gso ? " gso on" : " gso off";
  if (!datagram_stats_.gso_fallback_reason.empty())
    text += " (" + datagram_stats_.gso_fallback_reason + ")";
  text += datagram_stats_.gro ? " gro on" : " gro off";
  return text;
}

Result<std::unique_ptr<Transport>> make_udp_transport(const UdpTransportOptions& options) {
  auto transport = std::make_unique<UdpTransport>();
  if (Status status = transport->open(options); !status.ok()) return status;
  return std::unique_ptr<Transport>(std::move(transport));
}

Status udp_viable(const UdpTransportOptions& options) {
  UdpTransport transport;
  if (Status status = transport.open(options); !status.ok()) return status;
  return transport.datagram().join(kTrialAddress);
}

TransportType udp_transport_type() {
  return {"udp",
          "a network interface",
          true,
          [](const Config& config) { return udp_viable(UdpTransportOptions::from(config)); },
          [](const Config& config, LaneId lane, std::shared_ptr<const crypto::Identity> identity) {
            UdpTransportOptions options = UdpTransportOptions::from(config, index_of(lane));
            options.identity = std::move(identity);
            return make_udp_transport(options);
          },
          [](const Config& config, const std::string& store) -> std::vector<OwnAddress> {
            const auto interfaces = list_interfaces();
            if (!interfaces.ok()) return {};
            return own_addresses(*interfaces, config.interface, store);
          }};
}

}  // namespace mcast
