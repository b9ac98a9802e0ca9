// Devices are opened by IP address: an identifier of rdma_cm bound to an interface's address knows
// the device and port behind it, for RoCE as for InfiniBand with IPoIB. So no table of GIDs has to
// be searched, and every later identifier of that address uses the same device.
#include "transport/verbs/device.h"

#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/log.h"
#include "base/socket_address.h"
#include "transport/udp/socket.h"

namespace mcast::verbs {
namespace {

size_t mtu_bytes(ibv_mtu mtu) {
  const int value = static_cast<int>(mtu);
  return value >= IBV_MTU_256 && value <= IBV_MTU_4096 ? size_t{128} << value : 0;
}

std::shared_ptr<DeviceHealth> health_of(ibv_context* context) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<ibv_context*, std::weak_ptr<DeviceHealth>>;
  std::lock_guard<std::mutex> lock(*mutex);
  auto& entry = (*all)[context];
  auto health = entry.lock();
  if (!health) entry = health = std::make_shared<DeviceHealth>();
  return health;
}

}  // namespace

Result<std::vector<Port>> list_ports(Api& api, rdma_event_channel* channel,
                                     const VerbsOptions& options) {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  auto pattern = InterfacePattern::parse(options.interface);
  if (!pattern.ok()) return pattern.status();
  std::vector<Port> ports;
  int error = 0;
  for (Interface& i : *interfaces) {
    i.address = i.first_address(false);  // rdma_cm's groups and GIDs are those of IPv4 here
    if (!i.usable() || (i.loopback && !options.loopback)) continue;
    const bool named = pattern->match(i.name) >= 0;
    if (!pattern->names.empty() && named == pattern->exclude) continue;
    rdma_cm_id* id = nullptr;
    error = api.create_id(channel, &id, nullptr, RDMA_PS_TCP);
    if (error != 0) break;
    SocketAddress address(Endpoint{i.address, 0});
    if (api.bind_addr(id, address.get()) == 0 && id->verbs != nullptr) {
      ibv_port_attr attr{};
      Port port{api.device_name(id->verbs), id->port_num, false, i};
      port.active =
          api.query_port(id->verbs, id->port_num, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
      ports.push_back(std::move(port));
    }
    (void)api.destroy_id(id);
  }
  if (error != 0) {
    return Status(
        Code::kUnavailable,
        std::string("rdma_create_id: ") + std::strerror(error) +
            "; is the kernel module rdma_ucm loaded and /dev/infiniband/rdma_cm visible?");
  }
  if (ports.empty()) {
    return Status(Code::kUnavailable,
                  std::to_string(api.device_count()) +
                      " RDMA device(s), but none behind an interface with an "
                      "IPv4 address" +
                      (options.interface.empty()
                           ? ""
                           : " that MCAST_SOCKET_IFNAME \"" + options.interface + "\" allows") +
                      "; InfiniBand needs IPoIB (ip addr add ... dev ib0), RoCE an address on its "
                      "Ethernet interface");
  }
  return ports;
}

Status Device::open(const VerbsOptions& options, rdma_event_channel* channel) {
  auto ports = list_ports(api_, channel, options);
  if (!ports.ok()) return ports.status();
  auto chosen = choose_port(*ports, options.hca, options.lane);
  if (!chosen.ok()) return chosen.status();
  port_ = std::move(chosen).value();
  const std::string where = "RDMA device " + port_.text();
  if (const int e = api_.create_id(channel, &anchor_, nullptr, RDMA_PS_TCP); e != 0) {
    return Status::system(e, "rdma_create_id");
  }
  SocketAddress address(Endpoint{port_.interface.address, 0});
  if (const int e = api_.bind_addr(anchor_, address.get()); e != 0) {
    return Status::system(e, where + ": rdma_bind_addr " + port_.interface.address.text());
  }
  context_ = anchor_->verbs;
  if (context_ == nullptr) return Status(Code::kUnavailable, where + " is gone");
  health_ = health_of(context_);
  ibv_port_attr port{};
  if (const int e = api_.query_port(context_, port_.number, &port); e != 0) {
    return Status::system(e, where + ": ibv_query_port");
  }
  if (const int e = api_.query_device(context_, &attr_); e != 0) {
    return Status::system(e, where + ": ibv_query_device");
  }
  ethernet_ = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (Status s = find_partition(port.pkey_tbl_len); !s.ok()) return s;
  // Bytes that RoCE takes of an IP packet: IPv4, UDP, and the transport's headers with their
  // checksum.
  constexpr size_t kRoceOverhead = 20 + 8 + 12 + 8 + 4;
  mtu_ = mtu_bytes(port.active_mtu);
  while (ethernet_ && mtu_ > 256 && mtu_ + kRoceOverhead > options.max_mtu) mtu_ /= 2;
  if (mtu_ == 0) return Status(Code::kUnavailable, where + " reports no MTU");
  if (attr_.max_mcast_grp <= 0) {
    return Status(Code::kUnavailable, where + " has no multicast (max_mcast_grp is 0)");
  }
  pd_ = api_.alloc_pd(context_);
  if (pd_ == nullptr) return Status::system(errno, where + ": ibv_alloc_pd");
  regions_ = std::make_unique<RegionCache>(api_, pd_);
  completions_ = api_.create_comp_channel(context_);
  if (completions_ == nullptr) return Status::system(errno, where + ": ibv_create_comp_channel");
  for (const int fd : {completions_->fd, context_->async_fd}) {
    (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return {};
}

// Groups use the interface's partition: datagrams with another key do not reach them. Connections
// get theirs from rdma_cm.
Status Device::find_partition(int keys) {
  const uint16_t wanted = be16toh(anchor_->route.addr.addr.ibaddr.pkey);
  // RoCE has VLANs instead; old kernels do not report a key.
  if (ethernet_ || wanted == 0) return {};
  constexpr uint16_t kNumber = 0x7fff;  // without the bit for full or limited membership
  bool found = false;
  for (int i = 0; i < keys; ++i) {
    uint16_t key = 0;
    if (api_.query_pkey(context_, port_.number, i, &key) != 0) continue;
    if (key != wanted && (found || (key & kNumber) != (wanted & kNumber))) continue;
    pkey_index_ = static_cast<uint16_t>(i);
    found = true;
    if (key == wanted) break;
  }
  if (found) return {};
  char text[8];
  (void)std::snprintf(text, sizeof text, "0x%04x", unsigned{wanted});
  return Status(Code::kUnavailable, "RDMA device " + port_.text() +
                                        " is not a member of partition " + text + " of " +
                                        port_.interface.name);
}

Device::~Device() {
  if (abandoned_) return;
  regions_.reset();
  if (completions_ != nullptr) (void)api_.destroy_comp_channel(completions_);
  if (pd_ != nullptr) (void)api_.dealloc_pd(pd_);
  if (anchor_ != nullptr) (void)api_.destroy_id(anchor_);
}

void Device::abandon() noexcept {
  // All lanes share librdmacm's context; its descriptors are closed once.
  if (completions_ != nullptr) ::close(completions_->fd);
  if (regions_) regions_->abandon();
  abandoned_ = true;
}

void Device::poll_events(Nanos now) {
  now_ = now;
  ibv_async_event event{};
  while (api_.get_async_event(context_, &event) == 0) {
    on_event(event);
    api_.ack_async_event(&event);
  }
}

void Device::on_event(const ibv_async_event& event) {
  DeviceHealth& h = *health_;
  const char* what = nullptr;
  // Events are read once, so those of another lane's port are counted too. (The number shares its
  // storage with other fields: it is valid for events of ports only.)
  uint8_t number = port_.number;
  const auto port = [&]() -> PortHealth& {
    number = static_cast<uint8_t>(event.element.port_num);
    return h.ports[number];
  };
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
      what = "reported a fatal error";
      h.removed = true;
      break;
    case IBV_EVENT_PORT_ERR:
      what = "lost its link";
      port().down = true;
      break;
    case IBV_EVENT_PORT_ACTIVE:
      what = "has its link again";
      port().down = false;
      break;
    case IBV_EVENT_GID_CHANGE:
      what = "changed a GID";
      ++port().address_changes;
      break;
    case IBV_EVENT_LID_CHANGE:
      what = "changed its LID";
      ++port().address_changes;
      break;
    case IBV_EVENT_CLIENT_REREGISTER:
      what = "was told by the subnet manager to join its groups again";
      ++port().address_changes;
      break;
    case IBV_EVENT_SM_CHANGE:
      what = "has another subnet manager";
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      what = "broke a queue pair";
      std::lock_guard<std::mutex> lock(h.mutex);
      h.broken_qps.push_back(event.element.qp->qp_num);
      ++h.broken_count;
      break;
    }
    case IBV_EVENT_CQ_ERR:
      what = "broke a completion queue";
      h.removed = true;
      break;
    default:
      return;
  }
  log(LogLevel::kWarn, "RDMA device %s:%d %s", port_.device.c_str(), number, what);
  std::lock_guard<std::mutex> lock(h.mutex);
  h.last = what;
}

void Device::lose(const char* why) {
  DeviceHealth& h = *health_;
  log(LogLevel::kWarn, "RDMA device %s %s", port_.text().c_str(), why);
  {
    std::lock_guard<std::mutex> lock(h.mutex);
    h.last = why;
  }
  h.removed = true;
}

Status Device::condition(bool port_too) const {
  DeviceHealth& h = *health_;
  if (!h.removed && !(port_too && h.ports[port_.number].down)) return {};
  std::lock_guard<std::mutex> lock(h.mutex);
  return Status(Code::kUnavailable, "RDMA device " + port_.text() + " " +
                                        (h.removed ? (h.last.empty() ? "was removed" : h.last)
                                                   : std::string("lost its link")));
}

bool Device::take_broken(uint32_t qp) {
  DeviceHealth& h = *health_;
  if (h.broken_count == 0) return false;
  std::lock_guard<std::mutex> lock(h.mutex);
  for (size_t i = 0; i < h.broken_qps.size(); ++i) {
    if (h.broken_qps[i] != qp) continue;
    h.broken_qps.erase(h.broken_qps.begin() + static_cast<std::ptrdiff_t>(i));
    --h.broken_count;
    return true;
  }
  return false;
}

std::string Device::describe() const {
  return port_.text() + (ethernet_ ? " RoCE " : " InfiniBand ") + port_.interface.name + " " +
         port_.interface.address.text() + " mtu " + std::to_string(mtu_);
}

CompletionQueue::~CompletionQueue() {
  if (cq_ != nullptr) (void)device_.api().destroy_cq(cq_);
}

Status CompletionQueue::open(int depth, const char* what) {
  cq_ = device_.api().create_cq(device_.context(), depth, this, device_.completions());
  depth_ = static_cast<size_t>(depth);
  if (cq_ != nullptr) return {};
  return Status::system(
      errno, std::string("ibv_create_cq of ") + std::to_string(depth) + " entries for " + what);
}

bool CompletionQueue::fill() {
  if (failed_) return false;
  at_ = 0;
  end_ = device_.api().poll_cq(cq_, kBatch, batch_);
  if (end_ < 0) {
    failed_ = true;
    end_ = 0;
    device_.lose("has a completion queue that cannot be read");
  }
  return end_ > 0;
}

bool CompletionQueue::next(ibv_wc& out) {
  if (at_ == end_ && !fill()) return false;
  out = batch_[at_++];
  return true;
}

bool CompletionQueue::arm() {
  if (at_ < end_) return false;
  // A completion that arrives between the last poll and the request raises no event, so look once
  // more afterwards.
  if (const int error = device_.api().req_notify_cq(cq_); error != 0) failed_ = true;
  return !fill();
}

}  // namespace mcast::verbs
