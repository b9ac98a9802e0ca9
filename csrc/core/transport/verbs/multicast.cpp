// Each membership has an identifier of its own, so that one group can be joined for sending only,
// then in full, then again, without waiting for the end of the previous membership. The queue
// pair's key must be that of the groups: the first join sets it, and a later group with another key
// cannot be used beside it.
//
// A membership that the fabric ended is joined again until that succeeds: immediately, then after
// pauses that double. Datagrams sent to the group in the meantime are lost, as in a network, and
// repaired.
#include "transport/verbs/multicast.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "base/socket_address.h"
#include "transport/udp/socket.h"

namespace mcast::verbs {
namespace {

constexpr uint32_t kAdministrativeScope = 239u << 24;
constexpr Nanos kFirstPause = 100 * kMilli, kLastPause = 10 * kSecond;  // between attempts

// Returns "RoCE v2", "IB/RoCE v1"; from sysfs, for messages.
std::string gid_type(const Port& port, uint8_t index) {
  std::ifstream file("/sys/class/infiniband/" + port.device + "/ports/" +
                     std::to_string(port.number) + "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  return std::getline(file, type) ? type : "type unknown";
}

}  // namespace

Endpoint group_endpoint(const MulticastAddress& address) {
  const uint64_t mixed = mix64(uint64_t{address.group & 0xffffff} << 16 | address.port);
  return {IpAddress::v4(kAdministrativeScope | static_cast<uint32_t>(mixed & 0xffffff)),
          address.port};
}

Membership::Membership(Device& device, CmChannel& cm, UdStats& stats, ibv_qp* qp,
                       const MulticastAddress& address, bool send_only, const VerbsOptions& options)
    : device_(device),
      cm_(cm),
      stats_(stats),
      qp_(qp),
      address_(address),
      send_only_(send_only),
      hop_limit_(static_cast<uint8_t>(options.ttl)),
      patience_(options.join_patience) {}

Membership::~Membership() { release(); }

void Membership::release() {
  if (abandoned_) return;
  if (attached_) (void)device_.api().detach_mcast(qp_, &joined_.mgid, joined_.mlid);
  attached_ = false;
  handle_.reset();
  // Leaves the group.
  if (id_ != nullptr) cm_.destroy(id_);
  id_ = nullptr;
}

void Membership::abandon() noexcept {
  abandoned_ = true;
  if (handle_) handle_->abandon();
}

void Membership::start() {
  state_ = State::kJoining;
  failure_ = {};
  lost_ = false;
  due_ = kNever;
  if (Status s = ask(); !s.ok()) fail(s);
}

Status Membership::ask() {
  auto id = cm_.make(this, RDMA_PS_UDP);
  if (!id.ok()) return id.status();
  id_ = *id;
  Api& api = device_.api();
  const Port& port = device_.port();
  SocketAddress local(Endpoint{port.interface.address, 0});
  if (const int e = api.bind_addr(id_, local.get()); e != 0) {
    return Status::system(e, "rdma_bind_addr");
  }
  // Addresses can move to another device (bonding, a device that was removed and came back); the
  // queue pair cannot.
  if (id_->verbs != device_.context() || id_->port_num != port.number) {
    const std::string now = id_->verbs == nullptr ? "no device"
                                                  : std::string(api.device_name(id_->verbs)) + ":" +
                                                        std::to_string(id_->port_num);
    return Status(Code::kUnavailable, port.interface.address.text() + " now belongs to " + now);
  }
  const Endpoint group = group_endpoint(address_);
  SocketAddress at(group);
  const int e = api.join_multicast(id_, at.get(), send_only_);
  return e == 0 ? Status() : Status::system(e, "rdma_join_multicast " + group.text());
}

void Membership::maintain(Nanos now, bool addresses_changed) {
  const bool again = state_ == State::kFailed && due_ <= now;
  if (addresses_changed || lost_ || again) {
    if (!again) {
      log(LogLevel::kWarn, "joining %s again: %s", text().c_str(),
          lost_ ? "the fabric took it away" : "the fabric's addresses changed");
      ++stats_.rejoins;
      pause_ = 0;
    }
    release();
    start();
  }
  if (state_ == State::kJoining) {
    if (due_ == kNever) due_ = now + patience_;
    if (now >= due_) {
      fail(Status(Code::kUnavailable,
                  "no answer to the multicast join within " + seconds_text(patience_)));
    }
  }
  if (state_ == State::kFailed && due_ == kNever) {
    pause_ = pause_ == 0 ? kFirstPause : std::min(2 * pause_, kLastPause);
    due_ = now + pause_;
    ++stats_.join_failures;
    log(LogLevel::kWarn, "%s; datagrams to %s are lost, joining again in %s",
        failure_.message().c_str(), text().c_str(), seconds_text(pause_).c_str());
  }
}

Nanos Membership::due() const noexcept {
  if (state_ == State::kReady) return lost_ ? 0 : kNever;
  return due_ == kNever ? 0 : due_;
}

void Membership::on_cm_event(const CmEvent& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_MULTICAST_JOIN:
      if (state_ == State::kJoining) on_joined(event.ud);
      break;
    case RDMA_CM_EVENT_MULTICAST_ERROR:
      if (state_ == State::kReady) {
        lost_ = true;
      } else {
        fail(Status(Code::kUnavailable, cm_event_text(event)));
      }
      break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      fail(Status(Code::kUnavailable, cm_event_text(event)));
      break;
    case RDMA_CM_EVENT_ADDR_CHANGE:
      lost_ = true;
      break;
    default:
      break;
  }
}

void Membership::on_joined(const rdma_ud_param& ud) {
  Api& api = device_.api();
  joined_.mgid = ud.ah_attr.grh.dgid;
  joined_.mlid = ud.ah_attr.dlid;
  joined_.gid_index = ud.ah_attr.grh.sgid_index;
  joined_.qpn = ud.qp_num;
  joined_.qkey = ud.qkey;
  ibv_ah_attr attr = ud.ah_attr;
  // rdma_cm takes RoCE's hop limit from its routes, which give none for groups.
  if (device_.ethernet() && attr.grh.hop_limit < hop_limit_) attr.grh.hop_limit = hop_limit_;
  ibv_ah* const handle = api.create_ah(device_.pd(), &attr);
  if (handle == nullptr) {
    fail(Status::system(errno, "ibv_create_ah for the multicast group"));
    return;
  }
  handle_ = std::make_shared<AddressHandle>(api, handle);
  if (api.query_gid(device_.context(), device_.port().number, joined_.gid_index,
                    &joined_.own_gid) != 0) {
    joined_.own_gid = {};
  }
  if (Status s = attach(); !s.ok()) {
    fail(s);
    return;
  }
  state_ = State::kReady;
  due_ = kNever;
  // The end of a failure is logged at the same level as its start.
  log(std::exchange(pause_, 0) == 0 ? LogLevel::kInfo : LogLevel::kWarn, "joined %s on %s%s",
      text().c_str(), device_.port().text().c_str(), send_only_ ? " for sending" : "");
}

Status Membership::attach() {
  if (send_only_) return {};
  if (qp_ == nullptr) return Status(Code::kUnavailable, "the queue pair for datagrams is broken");
  Api& api = device_.api();
  ibv_qp_attr key{};
  key.qkey = joined_.qkey;
  if (const int e = api.modify_qp(qp_, &key, IBV_QP_QKEY); e != 0) {
    return Status::system(e, "ibv_modify_qp to the group's key");
  }
  if (const int e = api.attach_mcast(qp_, &joined_.mgid, joined_.mlid); e != 0) {
    return Status::system(e, "ibv_attach_mcast; the device takes " +
                                 std::to_string(device_.attr().max_mcast_grp) +
                                 " multicast groups");
  }
  attached_ = true;
  return {};
}

void Membership::leave_qp() {
  if (attached_) (void)device_.api().detach_mcast(qp_, &joined_.mgid, joined_.mlid);
  attached_ = false;
  qp_ = nullptr;
}

void Membership::use_qp(ibv_qp* qp) {
  qp_ = qp;
  if (state_ != State::kReady) return;
  if (Status s = attach(); !s.ok()) fail(s);
}

void Membership::fail(const Status& why) {
  release();
  state_ = State::kFailed;
  due_ = kNever;
  failure_ = why.with_context("RDMA device " + device_.port().text());
}

std::string Membership::text() const {
  if (joined_.qpn == 0) return "group " + group_endpoint(address_).text();  // never joined
  char mgid[INET6_ADDRSTRLEN] = "?";
  (void)::inet_ntop(AF_INET6, joined_.mgid.raw, mgid, sizeof mgid);
  char lid[16];
  (void)std::snprintf(lid, sizeof lid, "0x%04x", unsigned{joined_.mlid});
  return std::string("MGID ") + mgid + " MLID " + lid + " from GID index " +
         std::to_string(joined_.gid_index) + " (" + gid_type(device_.port(), joined_.gid_index) +
         ", that of " + device_.port().interface.address.text() + ")";
}

}  // namespace mcast::verbs
