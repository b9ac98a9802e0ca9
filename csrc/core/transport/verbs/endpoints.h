// The verbs transport as an object: one device, one event channel, two endpoints, one sleep.
#pragma once

#include "transport/transport.h"
#include "transport/udp/socket.h"
#include "transport/verbs/datagram.h"
#include "transport/verbs/stream.h"

namespace mcast::verbs {

class VerbsTransport final : public Transport {
 public:
  explicit VerbsTransport(Api& api)
      : cm_(api),
        device_(api),
        datagram_(device_, cm_, datagram_stats_),
        stream_(device_, cm_, stream_stats_) {}
  ~VerbsTransport() override;

  Status open(const VerbsOptions& options);

  const char* name() const override { return "verbs"; }
  Datagram& datagram() override { return datagram_; }
  Stream& stream() override { return stream_; }
  void wait(Nanos timeout) override;
  void wake() noexcept override;
  void abandon_after_fork() noexcept override;
  std::string describe() const override;

  const UdStats& datagram_stats() const noexcept { return datagram_stats_; }
  const RcStats& stream_stats() const noexcept { return stream_stats_; }
  Device& device() noexcept { return device_; }
  const RcStream& rc() const noexcept { return stream_; }
  const UdEndpoint& ud() const noexcept { return datagram_; }

 private:
  bool ready();  // returns true if a completion is there
  bool quiet();  // returns true if there is none, and the next one will raise an event
  void drain_events();

  UdStats datagram_stats_;
  RcStats stream_stats_;
  CmChannel cm_;
  Device device_;
  UdEndpoint datagram_;
  RcStream stream_;
  Epoll poller_;
  Fd wake_fd_;
  Nanos spin_ = 0;  // how long the next wait polls before it sleeps
  bool may_spin_ = false;
};

// The same with the caller's table of functions, for tests; the table must outlive the transport.
Result<std::unique_ptr<VerbsTransport>> make_transport(Api& api, const VerbsOptions& options);

}  // namespace mcast::verbs
