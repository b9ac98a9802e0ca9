// The device of one lane: port, protection domain, completion queues, and events from outside (port
// down, addresses changed, removed). All lanes of a process share librdmacm's context of a device
// and with it the only queue of asynchronous events, so events that one lane reads are recorded
// where the other lanes see them.
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

// State of a device's port since it was opened; any thread.
struct PortHealth {
  std::atomic<bool> down{false};
  // Number of times that the addresses of multicast groups may have changed (GID, LID, subnet
  // manager).
  std::atomic<uint64_t> address_changes{0};
};
struct DeviceHealth {
  std::atomic<bool> removed{false};
  std::array<PortHealth, 256> ports;  // by number
  std::mutex mutex;
  std::vector<uint32_t> broken_qps;     // queue pair numbers; guarded by `mutex`
  std::atomic<size_t> broken_count{0};  // size of `broken_qps`, to be read without the lock
  std::string last;                     // the last event as text; guarded by `mutex`
};

class Device {
 public:
  explicit Device(Api& api) : api_(api) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Finds and opens the port; uses the event channel synchronously.
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

  // Reads asynchronous events and logs them.
  void poll_events(Nanos now);
  // The lane's time of the last poll_events(); 0 if there was none. Datagram calls pass no time of
  // their own.
  Nanos now() const noexcept { return now_; }
  // Marks the device unusable: condition() returns `why` from now on.
  void lose(const char* why);
  // Returns why the device cannot be used any more, or ok; a port that is down counts only with
  // `port_too`.
  Status condition(bool port_too) const;
  bool usable() const noexcept { return !health_->removed; }
  // Returns true if the device declared a queue pair of any lane broken and no owner has taken it
  // yet.
  bool any_broken() const noexcept { return health_->broken_count != 0; }
  // Returns true, once, if the device declared queue pair `qp` broken. Its owner also calls this
  // before it destroys the queue pair, because the number may be used again.
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

// A completion queue that keeps the completions found while arming it.
class CompletionQueue {
 public:
  explicit CompletionQueue(Device& device) : device_(device) {}
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  Status open(int depth, const char* what);

  ibv_cq* get() const noexcept { return cq_; }
  // Takes the next completion; returns false if there is none.
  bool next(ibv_wc& out);
  // Returns true if a completion is there.
  bool ready() { return at_ < end_ || fill(); }
  // Requests an event for the next completion. Returns false if there is one already: do not sleep
  // then.
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

// Lists all RDMA ports behind usable interfaces that VerbsOptions::interface (NCCL grammar) allows.
Result<std::vector<Port>> list_ports(Api& api, rdma_event_channel* channel,
                                     const VerbsOptions& options);

}  // namespace mcast::verbs
