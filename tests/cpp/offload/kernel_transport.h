// The kernel of csrc/dpa as the receiver of an endpoint of the simulated network. Incoming
// datagrams go into the queues of the NIC model (dpa/nic_model.h), a hart runs the kernel at random
// network times, independently of the rank's lane, and its writes are carried out later. The
// control plane, which the lane drives by receive(), opens and retires slices, and passes on words
// of bitmaps and other datagrams once they have landed.
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
#include "sim/network/sim_network.h"

namespace mcast::offload {

struct KernelOptions {
  int (*kernel)(dpa_worker*) = nullptr;
  bool immediates = false;  // as in the paper: one slice, whose root's data has an immediate
  double failing = 0;       // chance of an error of a write or receive per hart poll
  std::function<void(const std::string&)> on_broken;  // called with the broken rule
};

struct KernelTotals {
  uint64_t slices = 0, refused = 0, retired = 0, revoked = 0;
  uint64_t placed = 0;     // chunks
  uint64_t handed_on = 0;  // datagrams
  uint64_t foreign = 0;    // dropped since there was no room
  uint64_t failures = 0;   // of workers
};

class KernelTransport final : public Transport,
                              private Datagram,
                              private Placer,
                              private DatagramSink {
 public:
  // `totals` and the network must outlive it.
  KernelTransport(std::unique_ptr<Transport> inner, SimNetwork& network, uint64_t seed,
                  const KernelOptions& options, KernelTotals& totals);
  ~KernelTransport() override;

  // Called when a datagram has arrived for the endpoint.
  void on_news() { plan(); }
  std::function<void()> gone;  // runs in the destructor
  // Returns true if data is on its way to the lane.
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
  static constexpr uint32_t kSlices = 8;   // a power of two; the model needs one region more
  static constexpr uint32_t kRest = 4096;  // datagrams, about as many as a socket holds
  // Everything that the NIC and the hart share, except staging.
  struct Queues;
  struct Open {
    SliceName name;
    uint64_t serial = 0;  // 0: not used
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
  // Words that the control plane has read. They are valid once `horizon` writes have landed.
  struct Looked {
    std::vector<Word> words;
    uint32_t rest = 0, horizon = 0;
  };

  // Datagram: forwarded, except for receiving.
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
  // Passes a datagram of the medium to the NIC.
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
  std::vector<Word> words_;                   // words that have landed
  std::deque<std::vector<std::byte>> whole_;  // datagrams for the lane
  bool port_waits_ = false;                   // a datagram waits for a posted receive
  bool planned_ = false;
};

// Totals over all endpoints of all clusters of the program.
KernelTotals& kernel_totals();
// Options of clusters that are made from now on.
KernelOptions& kernel_options();

}  // namespace mcast::offload
