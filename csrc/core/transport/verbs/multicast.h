// One membership in a multicast group: joined through rdma_cm, which asks the subnet manager
// (InfiniBand) or the network (RoCE: IGMP), and returns what to send with. Nothing of that is
// assumed: address vector, queue pair number and key are the join event's.
#pragma once

#include <string>

#include "transport/transport.h"
#include "transport/verbs/cm.h"
#include "transport/verbs/device.h"

namespace mcast::verbs {

// The IPv4 group that stands for `address`: rdma_cm makes the MGID of it. Group and port are mixed,
// because an MGID has no port.
sockaddr_in group_sockaddr(const MulticastAddress& address);

class Membership final : public CmHandler {
 public:
  enum class State { kJoining, kReady, kFailed };

  // `qp` is attached unless `send_only`.
  Membership(CmChannel& cm, Device& device, ibv_qp* qp, const MulticastAddress& address,
             bool send_only, uint8_t hop_limit);
  ~Membership() override;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Asks to join; the answer comes as an event.
  void start();
  // Leaves and joins anew, since the fabric gave out new addresses.
  void restart();

  const MulticastAddress& address() const noexcept { return address_; }
  State state() const noexcept { return state_; }
  const Status& failure() const noexcept { return failure_; }
  bool send_only() const noexcept { return send_only_; }
  // The fabric said that this membership is over.
  bool lost() const noexcept { return lost_; }
  // kReady only.
  ibv_ah* handle() const noexcept { return handle_; }
  uint32_t remote_qpn() const noexcept { return qpn_; }
  uint32_t qkey() const noexcept { return qkey_; }
  // "MGID ff12:... MLID 0xc001 GID index 1 (RoCE v2)", for the log.
  std::string text() const;
  void abandon() noexcept { abandoned_ = true; }

 private:
  void on_cm_event(const CmEvent& event) override;
  void on_joined(const rdma_ud_param& ud);
  void fail(Status why);
  void release();

  CmChannel& cm_;
  Device& device_;
  ibv_qp* qp_;
  const MulticastAddress address_;
  const bool send_only_;
  const uint8_t hop_limit_;
  State state_ = State::kJoining;
  Status failure_;
  bool lost_ = false;
  bool attached_ = false;
  bool abandoned_ = false;
  rdma_cm_id* id_ = nullptr;
  ibv_ah* handle_ = nullptr;
  ibv_gid mgid_{};
  uint16_t mlid_ = 0;
  uint8_t gid_index_ = 0;
  uint32_t qpn_ = 0, qkey_ = 0;
};

}  // namespace mcast::verbs
