// The Datagram endpoint over UDP multicast: a DatagramSender and a DatagramReceiver.
#pragma once

#include <memory>
#include <span>

#include "transport/transport.h"
#include "transport/udp/datagram_receiver.h"
#include "transport/udp/datagram_sender.h"
#include "transport/udp/ignored.h"

namespace mcast {

class UdpDatagram final : public Datagram {
 public:
  // `poller` and `stats` outlive the endpoint.
  UdpDatagram(Epoll& poller, UdpStats& stats)
      : stats_(stats), sender_(poller, stats), receiver_(poller, stats) {}
  Status open(const UdpTransportOptions& options, std::span<const Interface> stripe,
              const Interface& loopback);

  size_t max_datagram(const MulticastAddress& address) const override;
  size_t header_bytes() const override { return headers_; }
  size_t receive_budget() const override;
  Status join(const MulticastAddress& address) override { return receiver_.join(address); }
  void leave(const MulticastAddress& address) override { receiver_.leave(address); }
  using Datagram::lend;
  Bytes lend(const MulticastAddress& address, size_t size, Echo echo) override;
  void commit(size_t size) override { sender_.commit(size); }
  bool flush() override { return sender_.flush(); }
  uint64_t fragmented() const override { return sender_.fragmented(); }
  uint64_t ignored() const override { return ignored_multicasts(); }
  size_t receive(DatagramSink& sink, size_t max_bytes) override {
    return receiver_.receive(sink, max_bytes);
  }

  Source source() const override { return receiver_.source(); }
  std::vector<IpAddress> sources_of(const StreamAddress& endpoint) const override;
  void restrict_to(const SourceFilter& allow) { receiver_.restrict_to(allow); }

  void abandon() noexcept { receiver_.abandon(); }

  const DatagramSender& sender() const noexcept { return sender_; }
  const DatagramReceiver& receiver() const noexcept { return receiver_; }
  // Clears pending errors of all sockets, which would keep them ready.
  void clear_errors();

 private:
  UdpStats& stats_;
  size_t max_stripe_ = 0, max_loopback_ = 0;
  size_t headers_ = 0;
  DatagramSender sender_;
  DatagramReceiver receiver_;
};

}  // namespace mcast
