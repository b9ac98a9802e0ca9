// Each membership has an identifier of its own, so that one group can be joined for sending only,
// then in full, then again, without waiting for the end of what was before. The queue pair's key
// must be the groups': the first join sets it, a later group with another key cannot be used beside
// it.
#include "transport/verbs/multicast.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/log.h"
#include "base/rng.h"
#include "transport/udp/socket.h"

namespace mcast::verbs {
namespace {

constexpr uint32_t kAdministrativeScope = 239u << 24;

// "RoCE v2", "IB/RoCE v1"; from sysfs, for people.
std::string gid_type(const Port& port, uint8_t index) {
  std::ifstream file("/sys/class/infiniband/" + port.device + "/ports/" +
                     std::to_string(port.number) + "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  return std::getline(file, type) ? type : "type unknown";
}

}  // namespace

sockaddr_in group_sockaddr(const MulticastAddress& address) {
  const uint64_t mixed = mix64(uint64_t{address.group & 0xffffff} << 16 | address.port);
  in_addr group{};
  group.s_addr = htonl(kAdministrativeScope | static_cast<uint32_t>(mixed & 0xffffff));
  return ipv4_address(group, address.port);
}

Membership::Membership(CmChannel& cm, Device& device, ibv_qp* qp, const MulticastAddress& address,
                       bool send_only, uint8_t hop_limit)
    : cm_(cm),
      device_(device),
      qp_(qp),
      address_(address),
      send_only_(send_only),
      hop_limit_(hop_limit) {}

Membership::~Membership() { release(); }

void Membership::release() {
  if (abandoned_) return;
  Api& api = device_.api();
  if (attached_) (void)api.detach_mcast(qp_, &mgid_, mlid_);
  attached_ = false;
  if (handle_ != nullptr) (void)api.destroy_ah(handle_);
  handle_ = nullptr;
  // Leaves the group.
  if (id_ != nullptr) cm_.destroy(id_);
  id_ = nullptr;
}

void Membership::start() {
  state_ = State::kJoining;
  failure_ = {};
  lost_ = false;
  auto id = cm_.make(this, RDMA_PS_UDP);
  if (!id.ok()) {
    fail(id.status());
    return;
  }
  id_ = *id;
  sockaddr_in local = ipv4_address(device_.port().interface.address, 0);
  if (const int e = device_.api().bind_addr(id_, reinterpret_cast<sockaddr*>(&local)); e != 0) {
    fail(Status::system(e, "rdma_bind_addr"));
    return;
  }
  sockaddr_in group = group_sockaddr(address_);
  if (const int e =
          device_.api().join_multicast(id_, reinterpret_cast<sockaddr*>(&group), send_only_);
      e != 0) {
    fail(Status::system(e, "rdma_join_multicast " + to_text(group)));
  }
}

void Membership::restart() {
  release();
  start();
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
  mgid_ = ud.ah_attr.grh.dgid;
  mlid_ = ud.ah_attr.dlid;
  gid_index_ = ud.ah_attr.grh.sgid_index;
  qpn_ = ud.qp_num;
  qkey_ = ud.qkey;
  ibv_ah_attr attr = ud.ah_attr;
  // rdma_cm leaves RoCE's hop limit at what its routes say, which for groups is nothing.
  if (device_.ethernet() && attr.grh.hop_limit < hop_limit_) attr.grh.hop_limit = hop_limit_;
  handle_ = api.create_ah(device_.pd(), &attr);
  if (handle_ == nullptr) {
    fail(Status::system(errno, "ibv_create_ah for the multicast group"));
    return;
  }
  if (!send_only_) {
    ibv_qp_attr key{};
    key.qkey = qkey_;
    if (const int e = api.modify_qp(qp_, &key, IBV_QP_QKEY); e != 0) {
      fail(Status::system(e, "ibv_modify_qp to the group's key"));
      return;
    }
    if (const int e = api.attach_mcast(qp_, &mgid_, mlid_); e != 0) {
      fail(Status::system(e, "ibv_attach_mcast; the device takes " +
                                 std::to_string(device_.attr().max_mcast_grp) +
                                 " multicast groups"));
      return;
    }
    attached_ = true;
  }
  state_ = State::kReady;
  log(LogLevel::kInfo, "joined %s on %s%s", text().c_str(), device_.port().text().c_str(),
      send_only_ ? " for sending" : "");
}

void Membership::fail(Status why) {
  release();
  state_ = State::kFailed;
  failure_ = why.with_context("RDMA device " + device_.port().text());
}

std::string Membership::text() const {
  char mgid[INET6_ADDRSTRLEN] = "?";
  (void)::inet_ntop(AF_INET6, mgid_.raw, mgid, sizeof mgid);
  char lid[16];
  (void)std::snprintf(lid, sizeof lid, "0x%04x", unsigned{mlid_});
  return std::string("MGID ") + mgid + " MLID " + lid + " from GID index " +
         std::to_string(gid_index_) + " (" + gid_type(device_.port(), gid_index_) + ", that of " +
         to_text(device_.port().interface.address) + ")";
}

}  // namespace mcast::verbs
