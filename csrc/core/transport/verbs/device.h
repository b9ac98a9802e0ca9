// The device of one lane: port, protection domain, completion queues, and what happens to it from
// outside (port down, addresses changed, removed). All lanes of a process share librdmacm's context
// of a device and with it the one queue of asynchronous events, so what a lane reads from it is
// kept where the others see it.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/verbs/api.h"
#include "transport/verbs/hca.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/options.h"

namespace mcast::verbs {

// What befell a device since it was opened; any thread.
struct PortHealth {
  std::atomic<bool> down{false};
  // How often the addresses of multicast groups may have changed (GID, LID, subnet manager).
  std::atomic<uint64_t> address_changes{0};
};
struct DeviceHealth {
  std::atomic<bool> removed{false};
  std::array<PortHealth, 256> ports;  // by number
  std::mutex mutex;
  std::vector<uint32_t> broken_qps;     // numbers; guarded by `mutex`
  std::atomic<size_t> broken_count{0};  // of those, to look without it
  std::string last;                     // the last event in words; guarded by `mutex`
};

class Device {
 public:
  explicit Device(Api& api) : api_(api) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Finds and opens the port; the event channel is used for asking, synchronously.
  Status open(const VerbsOptions& options, rdma_event_channel* channel);

  Api& api() const noexcept { return api_; }
  ibv_context* context() const noexcept { return context_; }
  ibv_pd* pd() const noexcept { return pd_; }
  ibv_comp_channel* completions() const noexcept { return completions_; }
  const Port& port() const noexcept { return port_; }
  const ibv_device_attr& attr() const noexcept { return attr_; }
  RegionCache& regions() noexcept { return *regions_; }
  size_t mtu() const noexcept { return mtu_; }  // payload bytes of one unreliable datagram
  bool ethernet() const noexcept { return ethernet_; }
  uint16_t pkey_index() const noexcept { return pkey_index_; }  // of the interface's partition
  uint64_t address_changes() const noexcept { return health_->ports[port_.number].address_changes; }

  // Reads asynchronous events; logs what happened.
  void poll_events(Nanos now);
  // The lane's time as of the last of those; 0: none yet. Datagram calls bring none of their own.
  Nanos now() const noexcept { return now_; }
  // It cannot be used any more: condition() says why from now on.
  void lose(const char* why);
  // Why the device cannot be used any more, else ok; port down counts only with `port_too`.
  Status condition(bool port_too) const;
  bool usable() const noexcept { return !health_->removed; }
  // Whether the device declared any queue pair broken that nobody has taken, of any lane.
  bool any_broken() const noexcept { return health_->broken_count != 0; }
  // Whether it is this one; told once. Its owner also asks before it destroys a queue pair, whose
  // number another may get.
  bool take_broken(uint32_t qp);
  std::string describe() const;
  void abandon() noexcept;

 private:
  void on_event(const ibv_async_event& event);
  Status find_partition(int keys);

  Api& api_;
  Port port_;
  rdma_cm_id* anchor_ = nullptr;  // bound to the port: keeps librdmacm's context open
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  std::unique_ptr<RegionCache> regions_;
  ibv_comp_channel* completions_ = nullptr;
  ibv_device_attr attr_{};
  size_t mtu_ = 0;
  uint16_t pkey_index_ = 0;
  bool ethernet_ = false;
  bool abandoned_ = false;
  Nanos now_ = 0;
  std::shared_ptr<DeviceHealth> health_;
};

// A completion queue that remembers what arming it found.
class CompletionQueue {
 public:
  explicit CompletionQueue(Device& device) : device_(device) {}
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  Status open(int depth, const char* what);

  ibv_cq* get() const noexcept { return cq_; }
  // The next completion; false: none.
  bool next(ibv_wc& out);
  // Whether a completion is here.
  bool ready() { return at_ < end_ || fill(); }
  // Asks for an event at the next completion; false: there is one already, do not sleep.
  bool arm();
  bool failed() const noexcept { return failed_; }
  size_t depth() const noexcept { return depth_; }
  void abandon() noexcept { cq_ = nullptr; }

 private:
  bool fill();
  static constexpr int kBatch = 32;
  Device& device_;
  ibv_cq* cq_ = nullptr;
  ibv_wc batch_[kBatch];
  int at_ = 0, end_ = 0;
  bool failed_ = false;
  size_t depth_ = 0;
};

// All RDMA ports behind usable interfaces that VerbsOptions::interface (NCCL grammar) allows.
Result<std::vector<Port>> list_ports(Api& api, rdma_event_channel* channel,
                                     const VerbsOptions& options);

}  // namespace mcast::verbs
