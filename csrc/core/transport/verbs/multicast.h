// One membership in a multicast group: joined through rdma_cm, which asks the subnet manager
// (InfiniBand) or the network (RoCE: IGMP), and returns the parameters for sending. None of them is
// assumed: address vector, queue pair number and key are taken from the join event.
#pragma once

#include <memory>
#include <string>

#include "transport/transport.h"
#include "transport/verbs/cm.h"
#include "transport/verbs/device.h"

namespace mcast::verbs {

// The IPv4 group that stands for `address`: rdma_cm derives the MGID from it. Group and port are
// mixed, because an MGID has no port.
Endpoint group_endpoint(const MulticastAddress& address);

// Destroyed with its last holder: a device needs it until all datagrams sent with it have left.
class AddressHandle {
 public:
  AddressHandle(Api& api, ibv_ah* ah) : api_(api), ah_(ah) {}
  ~AddressHandle() {
    if (ah_ != nullptr) (void)api_.destroy_ah(ah_);
  }
  AddressHandle(const AddressHandle&) = delete;
  AddressHandle& operator=(const AddressHandle&) = delete;
  ibv_ah* get() const noexcept { return ah_; }
  // For the child of a fork: only the parent may destroy it.
  void abandon() noexcept { ah_ = nullptr; }

 private:
  Api& api_;
  ibv_ah* ah_;
};

class Membership final : public CmHandler {
 public:
  enum class State { kJoining, kReady, kFailed };

  // `qp` is attached unless `send_only`.
  Membership(Device& device, CmChannel& cm, UdStats& stats, ibv_qp* qp,
             const MulticastAddress& address, bool send_only, const VerbsOptions& options);
  ~Membership() override;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Requests the join; the reply arrives as an event.
  void start();
  // Leaves and joins again if the fabric ended the membership or (`addresses_changed`) assigned new
  // addresses; tries again, after pauses that grow, if an attempt failed or had no reply within
  // VerbsOptions::join_patience.
  void maintain(Nanos now, bool addresses_changed);
  // Time at which maintain() has something to do; kNever: not before an event.
  Nanos due() const noexcept;

  // For replacing the queue pair: from leave_qp() on the old one is not used any more, from
  // use_qp() on joins are for the new one.
  void leave_qp();
  void use_qp(ibv_qp* qp);

  State state() const noexcept { return state_; }
  const Status& failure() const noexcept { return failure_; }
  // In state kReady only.
  const std::shared_ptr<AddressHandle>& handle() const noexcept { return handle_; }
  uint32_t remote_qpn() const noexcept { return joined_.qpn; }
  uint32_t qkey() const noexcept { return joined_.qkey; }
  // Addresses that this member's datagrams come from, once joined.
  const ibv_gid& own_gid() const noexcept { return joined_.own_gid; }
  // "MGID ff12:... MLID 0xc001 GID index 1 (RoCE v2)", for the log.
  std::string text() const;
  void abandon() noexcept;

 private:
  void on_cm_event(const CmEvent& event) override;
  Status ask();
  Status attach();
  void on_joined(const rdma_ud_param& ud);
  void fail(const Status& why);
  void release();

  Device& device_;
  CmChannel& cm_;
  UdStats& stats_;
  ibv_qp* qp_;
  const MulticastAddress address_;
  const bool send_only_;
  const uint8_t hop_limit_;
  const Nanos patience_;
  State state_ = State::kJoining;
  Status failure_;
  bool lost_ = false;  // the fabric reported that this membership is over
  bool attached_ = false;
  bool abandoned_ = false;
  Nanos due_ = kNever;  // end of the time limit, or of the pause; kNever: not set yet
  Nanos pause_ = 0;
  rdma_cm_id* id_ = nullptr;
  std::shared_ptr<AddressHandle> handle_;
  // Result of the join event.
  struct Joined {
    ibv_gid mgid{}, own_gid{};
    uint16_t mlid = 0;
    uint8_t gid_index = 0;
    uint32_t qpn = 0, qkey = 0;  // qpn 0 if never joined
  } joined_;
};

}  // namespace mcast::verbs
