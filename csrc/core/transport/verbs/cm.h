// The event channel of rdma_cm, one per lane. Events are copied and acknowledged at once
// (destroying an identifier waits for its acknowledgements), then handed to the handler that the
// identifier carries.
#pragma once

#include <vector>

#include "base/refusal.h"
#include "base/status.h"
#include "transport/verbs/api.h"

namespace mcast::verbs {

struct CmEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_ERROR;
  int status = 0;            // negative errno, or the reason of a reject
  rdma_cm_id* id = nullptr;  // connect requests only: the new identifier, owned by the handler
  std::vector<std::byte> data;
  rdma_ud_param ud{};
};
const char* cm_event_name(rdma_cm_event_type type) noexcept;
// "address resolution failed: Network is unreachable"
std::string cm_event_text(const CmEvent& event);

// Returns the address that a connect request or a connection comes from; {} if it is not known.
Source peer_of(const rdma_cm_id* id) noexcept;

class CmHandler {
 public:
  virtual ~CmHandler() = default;
  virtual void on_cm_event(const CmEvent& event) = 0;
};

class CmChannel {
 public:
  explicit CmChannel(Api& api) : api_(api) {}
  ~CmChannel();
  CmChannel(const CmChannel&) = delete;
  CmChannel& operator=(const CmChannel&) = delete;
  Status open();
  rdma_event_channel* get() const noexcept { return channel_; }
  int fd() const noexcept { return channel_->fd; }

  // Makes a new identifier that carries `handler`, which must outlive it.
  Result<rdma_cm_id*> make(CmHandler* handler, rdma_port_space space);
  void destroy(rdma_cm_id* id);

  // Hands over the events that are there; returns their number.
  size_t poll();
  // Sleeps until an event arrives, at most `timeout`.
  void wait(Nanos timeout);
  void abandon() noexcept;

 private:
  Api& api_;
  rdma_event_channel* channel_ = nullptr;
};

}  // namespace mcast::verbs
