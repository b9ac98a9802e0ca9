// One endpoint of a SimNetwork. It must not outlive the network; destroying it without a goodbye is
// a death (SimNetwork::kill). Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "sim/network/acquaintances.h"
#include "sim/network/fifo.h"
#include "sim/network/guarded_streams.h"
#include "sim/network/streams.h"
#include "sim/network/train.h"
#include "transport/transport.h"

namespace mcast {

class SimNetwork;

class SimTransport final : public Transport, private Datagram, private Stream {
 public:
  SimTransport(SimNetwork* network, size_t index, const sim::Place& place);
  ~SimTransport() override;

  size_t index() const { return index_; }
  // Number of datagrams taken from this endpoint.
  uint64_t datagrams_taken() const { return taken_.datagrams; }
  // Counts since reset_account().
  struct Account {
    std::array<uint64_t, kChannels> frames{};  // sent, by channel
    size_t inbox = 0;  // maximum bytes of waiting datagrams, as a socket counts them
  };
  const Account& account() const { return account_; }
  void reset_account() { account_ = {{}, inbox_bytes_}; }
  bool has_joined(const MulticastAddress& address) const {
    return std::any_of(joined_.begin(), joined_.end(),
                       [&](const auto& entry) { return entry.first == address; });
  }
  // Makes its streams guarded from now on; call it before they are used. Returns null for unguarded
  // streams.
  void guard(const sim::GuardOptions& options);
  const sim::GuardedStreams* guarded() const { return guard_.get(); }

  const char* name() const override { return "sim"; }
  Datagram& datagram() override { return *this; }
  Stream& stream() override { return *this; }
  void wait(Nanos) override {}
  void wake() noexcept override;
  void abandon_after_fork() noexcept override {}
  std::string describe() const override;
  Source source() const override;
  uint64_t ignored() const override { return taken_.ignored; }
  std::vector<IpAddress> sources_of(const StreamAddress& endpoint) const override;

 private:
  friend class SimNetwork;

  size_t max_datagram(const MulticastAddress&) const override;
  size_t receive_budget() const override;
  Status join(const MulticastAddress& address) override;
  void leave(const MulticastAddress& address) override;
  using Datagram::lend;
  Bytes lend(const MulticastAddress& address, size_t size, Echo echo) override;
  void commit(size_t size) override;
  size_t gather_from() const override;
  bool commit_gather(size_t header, const Slice& block, size_t offset, size_t length) override;
  bool flush() override;
  size_t receive(DatagramSink& sink, size_t max_bytes) override;

  StreamAddress address(bool loopback) const override;
  PeerId add_peer(const StreamAddress& address) override;
  std::vector<PeerId> expect(std::span<const uint64_t> uids) override;
  void keep_trying(PeerId peer, Nanos until) override {
    if (guard_) guard_->keep_trying(peer, until);
  }
  void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(PeerId peer, Channel channel) const override;
  size_t poll(StreamSink& sink, Nanos now) override;
  bool close_peers(Nanos now) override;

  // The train being filled, begun for `address` if `size` bytes fit in none. Returns false if an
  // earlier train cannot be sent now.
  bool open_train(const MulticastAddress& address, size_t size);
  bool send_train();
  bool send_gathered();

  // Packets of a train that have arrived and were not taken.
  struct Arrived {
    sim::TrainRef train;
    uint64_t mask = 0;
  };
  struct InFrame {
    size_t from = 0;
    Channel channel = Channel::kControl;
    sim::Frame bytes;
  };
  InFrame take_frame();
  // Returns the frame in it; empty if it was a message of the connection itself.
  std::optional<ConstBytes> open(const InFrame& frame);
  void meet(PeerId peer);
  struct Down {
    size_t peer;
    bool graceful;
    Status why{};  // for an end detected here; otherwise the network has the reason
  };
  void on_down(Down down);
  struct Gathered {  // committed, not read yet
    MulticastAddress to;
    std::vector<std::byte> header;
    ConstBytes payload;
    std::shared_ptr<void> memory;
  };

  SimNetwork* network_;
  size_t index_;
  sim::Place place_;
  // Few entries: a linear search is fastest.
  std::vector<std::pair<MulticastAddress, int>> joined_;  // with the number of joins
  sim::TrainRef making_;
  MulticastAddress lent_to_;
  std::vector<Gathered> gathered_;
  size_t waiting_ = 0;    // wire bytes of trains at the interface
  bool refused_ = false;  // a send was refused, and is tried again when there is room
  sim::Fifo<Arrived> inbox_;
  size_t inbox_bytes_ = 0;
  struct {
    uint64_t datagrams = 0;
    uint64_t ignored = 0;               // datagrams for another port, not taken
    sim::EndpointId from = sim::kNone;  // of the last datagram
  } taken_;
  Account account_;
  std::deque<InFrame> frames_;
  std::deque<Down> downs_;
  bool said_goodbye_ = false;
  std::optional<std::set<PeerId>> expected_;  // only these peers are accepted
  sim::Acquaintances known_;
  std::unique_ptr<sim::GuardedStreams> guard_;
  bool timer_due_ = false;  // of the guard
};

}  // namespace mcast
