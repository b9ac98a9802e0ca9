// The channel never blocks: its descriptor is non-blocking and waited for with poll(2).
#include "transport/verbs/cm.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mcast::verbs {

const char* cm_event_name(rdma_cm_event_type type) noexcept {
  switch (type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return "address resolution failed";
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return "route resolution failed";
    case RDMA_CM_EVENT_CONNECT_ERROR:
      return "connecting failed";
    case RDMA_CM_EVENT_UNREACHABLE:
      return "unreachable";
    case RDMA_CM_EVENT_REJECTED:
      return "rejected";
    case RDMA_CM_EVENT_DISCONNECTED:
      return "disconnected";
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return "the device was removed";
    case RDMA_CM_EVENT_MULTICAST_ERROR:
      return "joining the multicast group failed";
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return "the address moved to another device";
    default:
      return "event";
  }
}

std::string cm_event_text(const CmEvent& event) {
  std::string text = cm_event_name(event.type);
  if (event.type == RDMA_CM_EVENT_REJECTED)
    return text + ", reason " + std::to_string(event.status);
  if (event.status != 0) text += std::string(": ") + std::strerror(std::abs(event.status));
  return text;
}

Source peer_of(const rdma_cm_id* id) noexcept {
  const sockaddr_in& at = id->route.addr.dst_sin;
  if (at.sin_family != AF_INET) return {};
  return Source{{IpAddress::v4(ntohl(at.sin_addr.s_addr)), ntohs(at.sin_port)}};
}

CmChannel::~CmChannel() {
  if (channel_ != nullptr) api_.destroy_event_channel(channel_);
}

Status CmChannel::open() {
  // Check for devices first: most hosts have none, and that is the clearer reason.
  const int devices = api_.device_count();
  if (devices < 0) {
    return Status(Code::kUnavailable,
                  std::string("no RDMA devices: ") + std::strerror(errno) +
                      "; is the kernel module ib_uverbs loaded and /dev/infiniband visible?");
  }
  if (devices == 0) return Status(Code::kUnavailable, "this host has no RDMA device");
  channel_ = api_.create_event_channel();
  if (channel_ == nullptr) {
    const int error = errno;
    return Status(
        Code::kUnavailable,
        std::string("rdma_create_event_channel: ") + std::strerror(error) +
            "; is the kernel module rdma_ucm loaded and /dev/infiniband/rdma_cm visible?");
  }
  (void)::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  return {};
}

Result<rdma_cm_id*> CmChannel::make(CmHandler* handler, rdma_port_space space) {
  rdma_cm_id* id = nullptr;
  if (const int e = api_.create_id(channel_, &id, handler, space); e != 0) {
    return Status::system(e, "rdma_create_id");
  }
  return id;
}

void CmChannel::destroy(rdma_cm_id* id) { (void)api_.destroy_id(id); }

size_t CmChannel::poll() {
  size_t events = 0;
  rdma_cm_event* raw = nullptr;
  while (api_.get_cm_event(channel_, &raw) == 0) {
    ++events;
    CmEvent event;
    event.type = raw->event;
    event.status = raw->status;
    event.id = raw->id;
    auto* handler = static_cast<CmHandler*>(raw->id->context);
    switch (raw->event) {
      case RDMA_CM_EVENT_MULTICAST_JOIN:
      case RDMA_CM_EVENT_MULTICAST_ERROR:
        event.ud = raw->param.ud;
        event.ud.private_data = nullptr;
        break;
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        handler = static_cast<CmHandler*>(raw->listen_id->context);
        [[fallthrough]];
      case RDMA_CM_EVENT_ESTABLISHED:
      case RDMA_CM_EVENT_REJECTED: {
        const auto* at = static_cast<const std::byte*>(raw->param.conn.private_data);
        if (at != nullptr) event.data.assign(at, at + raw->param.conn.private_data_len);
        break;
      }
      default:
        break;
    }
    (void)api_.ack_cm_event(raw);
    if (handler != nullptr) handler->on_cm_event(event);
  }
  return events;
}

void CmChannel::wait(Nanos timeout) {
  pollfd fd{channel_->fd, POLLIN, 0};
  const timespec limit{static_cast<time_t>(timeout / kSecond),
                       static_cast<long>(timeout % kSecond)};
  (void)::ppoll(&fd, 1, &limit, nullptr);
}

void CmChannel::abandon() noexcept {
  if (channel_ != nullptr) ::close(channel_->fd);
  channel_ = nullptr;
}

}  // namespace mcast::verbs
