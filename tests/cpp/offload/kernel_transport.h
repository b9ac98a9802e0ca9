// The kernel of csrc/dpa as the receiver of an endpoint of the simulated network: what arrives goes
// into the queues of the model of a NIC (dpa/nic_model.h), a hart runs the kernel at random times
// of the network's, whatever the rank's lane does, and its writes are carried out later. The
// control plane beside it, which the lane drives by receive(), opens and retires slices, and hands
// on words of bitmaps and other datagrams once they have landed.
//
// Threads: one.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "dpa/nic_model.h"
#include "transport/sim/sim_network.h"

namespace mcast::offload {

struct KernelOptions {
  int (*kernel)(dpa_worker*) = nullptr;
  bool immediates = false;  // as in the paper: one slice, data of its root come with an immediate
  double failing = 0;  // chance per turn of a hart that a write or a receive ends with an error
  std::function<void(const std::string&)> on_broken;  // a rule
};

struct KernelTotals {
  uint64_t slices = 0, refused = 0, retired = 0, revoked = 0;
  uint64_t placed = 0;     // chunks
  uint64_t handed_on = 0;  // datagrams
  uint64_t foreign = 0;    // that were not: no room
  uint64_t failures = 0;   // of workers
};

class KernelTransport final : public Transport,
                              private Datagram,
                              private Placer,
                              private DatagramSink {
 public:
  // `totals` and the network outlive it.
  KernelTransport(std::unique_ptr<Transport> inner, SimNetwork& network, uint64_t seed,
                  const KernelOptions& options, KernelTotals& totals);
  ~KernelTransport() override;

  // Something has come for the endpoint.
  void on_news() { plan(); }
  std::function<void()> gone;  // runs at the end
  // Something is on its way to the lane.
  bool busy() const;

  bool has_slices() const;

  const char* name() const override { return inner_->name(); }
  Datagram& datagram() override { return *this; }
  Stream& stream() override { return inner_->stream(); }
  void wait(Nanos timeout) override { inner_->wait(timeout); }
  void wake() noexcept override { inner_->wake(); }
  void abandon_after_fork() noexcept override { inner_->abandon_after_fork(); }
  std::string describe() const override { return inner_->describe() + ", received by a hart"; }

 private:
  static constexpr uint32_t kSlices = 8;   // a power of two; with the ring the model has 9 regions
  static constexpr uint32_t kRest = 4096;  // datagrams, as many as a socket may well hold
  // All that the NIC and the hart share but staging.
  struct Queues;
  struct Open {
    SliceName name;
    uint64_t serial = 0;  // 0: the place is free
    bool closing = false;
    bool dead = false;  // its worker has failed
    std::vector<uint64_t> bitmap, looked;
  };
  struct Word {
    uint32_t slot;
    uint64_t serial;
    uint32_t word;
    uint64_t bits;
  };
  // What the control plane has read, which is there once so many writes have landed.
  struct Looked {
    std::vector<Word> words;
    uint32_t rest = 0, horizon = 0;
  };

  // Datagram: as it is, but for what comes.
  size_t max_datagram(const MulticastAddress& a) const override { return medium_.max_datagram(a); }
  size_t receive_budget() const override { return medium_.receive_budget(); }
  Status join(const MulticastAddress& a) override { return medium_.join(a); }
  void leave(const MulticastAddress& a) override { medium_.leave(a); }
  using Datagram::lend;
  Bytes lend(const MulticastAddress& a, size_t size, Echo echo) override {
    return medium_.lend(a, size, echo);
  }
  void commit(size_t size) override { medium_.commit(size); }
  bool flush() override { return medium_.flush(); }
  size_t gather_from() const override { return medium_.gather_from(); }
  bool commit_gather(size_t header, const Slice& block, size_t offset, size_t length) override {
    return medium_.commit_gather(header, block, offset, length);
  }
  uint64_t fragmented() const override { return medium_.fragmented(); }
  Placer* placer() override { return this; }
  size_t receive(DatagramSink& sink, size_t max_bytes) override;

  bool place(const PlacedStream& stream) override;
  bool retire(const SliceName& name) override;
  void revoke(const SliceName& name) override;
  // From the medium, to the NIC.
  void on_datagram(ConstBytes datagram) override;

  void make_queues();
  void fill_slice(uint32_t slot, const PlacedStream& stream, uint32_t chunks);
  Open* find(const SliceName& name);
  bool retired(uint32_t slot) const;
  bool landed(uint32_t horizon) const;
  void turn();
  void take_in();
  void poll();
  void look();
  void collect();
  void start_anew();
  void check();
  void plan();
  bool work_left() const;

  std::unique_ptr<Transport> inner_;
  Datagram& medium_;
  SimNetwork& network_;
  KernelOptions options_;
  KernelTotals& totals_;
  Rng rng_;
  size_t longest_ = 0;  // payload of a chunk
  std::unique_ptr<Queues> queues_;
  std::array<Open, kSlices> open_;
  uint64_t serial_ = 0;
  std::deque<Looked> looked_;
  uint32_t rest_looked_ = 0;
  std::vector<Word> words_;                   // landed
  std::deque<std::vector<std::byte>> whole_;  // datagrams for the lane
  bool port_waits_ = false;                   // at the port, since no receive is posted
  bool planned_ = false;
};

// All endpoints of a cluster's network. Their totals are the program's.
KernelTotals& kernel_totals();
// For clusters that are made from now on.
KernelOptions& kernel_options();

}  // namespace mcast::offload
