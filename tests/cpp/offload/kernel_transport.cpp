// Addresses of the NIC are unrelated to those of the machine. The port's buffer is the simulated
// endpoint's queue: datagrams stay there while no receive is posted, and may overflow it. Our own
// checksum replaces the NIC's checksum over the payload (ICRC), and the kernel does not check it. A
// worker that has failed is replaced: its slices are dead, data in flight is lost, and repair
// delivers it.
#include "offload/kernel_transport.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "dpa/bytes.h"
#include "dpa/observed.h"
#include "support/cluster.h"
#include "wire/datagram.h"

namespace mcast::offload {
namespace {

constexpr uint32_t kMostSlots = 128, kQpn = 0x4711, kStagingKey = 0x5500;
constexpr uint64_t kStaging = 0x7f5500000000, kDestination = 0x10123400000000,
                   kRestAt = 0x20000000000000, kApart = uint64_t{1} << 40;
constexpr uint32_t kLastFlag = 0x02000000;

}  // namespace

struct KernelTransport::Queues {
  dpa_worker worker{};
  std::array<dpa_slice, kSlices> slices{};
  nic model{};
  uint64_t doorbell = 0;
  uint32_t rq_records[2] = {}, sq_records[2] = {}, received_record = 0, written_record = 0;
  alignas(1024) std::array<dpa_write_wqe, 2 * kMostSlots> writes{};
  alignas(64) std::array<dpa_cqe, kMostSlots> received{}, written{};
  std::array<dpa_data, kMostSlots> receives{};
  // Most of it is never touched, so it is not cleared explicitly.
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> staging, rest;
  std::array<uint32_t, kRest> rest_bytes{};
};

KernelTransport::KernelTransport(std::unique_ptr<Transport> inner, SimNetwork& network,
                                 uint64_t seed, const KernelOptions& options, KernelTotals& totals)
    : inner_(std::move(inner)),
      medium_(inner_->datagram()),
      network_(network),
      options_(options),
      totals_(totals),
      rng_(seed),
      longest_(medium_.max_datagram({}) - wire::kDatagramHeader) {
  make_queues();
}

KernelTransport::~KernelTransport() {
  totals_.foreign += queues_->worker.progress.foreign;
  if (gone) gone();
}

void KernelTransport::make_queues() {
  queues_ = std::make_unique<Queues>();
  Queues& q = *queues_;
  const uint32_t log = 5 + static_cast<uint32_t>(rng_.below(3)), slots = 1u << log;
  const auto stride = static_cast<uint32_t>((DPA_PAYLOAD_AT + longest_ + 63) / 64 * 64);
  const size_t staging = size_t{slots} * stride, rest = size_t{kRest} * stride;
  q.staging.reset(static_cast<uint8_t*>(std::calloc(staging, 1)));
  q.rest.reset(static_cast<uint8_t*>(std::calloc(rest, 1)));
  nic& n = q.model;
  n.noise = rng_.next();
  n.received = {q.received.data(), &q.received_record, log, 0};
  n.written = {q.written.data(), &q.written_record, log, 0};
  nic_clear(&n.received);
  nic_clear(&n.written);
  n.receives = q.receives.data();
  n.rq_record = &q.rq_records[DPA_RECEIVE_RECORD];
  n.writes = q.writes.data();
  n.sq_record = &q.sq_records[DPA_SEND_RECORD];
  n.doorbell = &q.doorbell;
  n.sq_mask = 2 * slots - 1;
  n.qpn = kQpn;
  n.staging = {kStaging, q.staging.get(), staging, kStagingKey, 0};
  const uint32_t key = nic_add_region(&n, kRestAt, q.rest.get(), rest);

  dpa_worker& w = q.worker;
  w.received = {q.received.data(), &q.received_record, 0, log};
  w.written = {q.written.data(), &q.written_record, 0, log};
  w.rq.record = q.rq_records;
  w.rq.staging = q.staging.get();
  w.rq.delta = kStaging - reinterpret_cast<uintptr_t>(q.staging.get());
  w.rq.stride = stride;
  w.sq.ring = q.writes.data();
  w.sq.record = &q.sq_records[DPA_SEND_RECORD];
  w.sq.doorbell = &q.doorbell;
  w.sq.qpn = uint64_t{be32(kQpn << 8)} << 32;
  w.sq.mask = 2 * slots - 1;
  w.slices = q.slices.data();
  w.slice_mask = options_.immediates ? 0 : kSlices - 1;
  w.sequence_shift = 2;
  w.rest = {
      kRestAt, be32(key), uint64_t{be32(kStagingKey)} << 32, q.rest_bytes.data(), kRest - 1, stride,
      0,       0};
  const uint32_t header = options_.immediates ? 0u : uint32_t{DPA_HEADER_BYTES};
  const uint32_t payload_at = options_.immediates ? DPA_RAW_PAYLOAD_AT : DPA_PAYLOAD_AT;
  const uint32_t before = DPA_GRH_BYTES + header;
  for (uint32_t i = 0; i < slots; i++) {
    q.receives[i] = {be32(before + static_cast<uint32_t>(longest_)), be32(kStagingKey),
                     be64(kStaging + uint64_t{i} * stride + payload_at - before)};
  }
  q.rq_records[DPA_RECEIVE_RECORD] = be32(slots);
  nic_observe(&n, nullptr);
}

// ---- the NIC and the hart, on the network's time ----

void KernelTransport::plan() {
  if (std::exchange(planned_, true)) return;
  network_.schedule(network_.now() + 200 + static_cast<Nanos>(rng_.below(3000)),
                    [this] { turn(); });
}

void KernelTransport::turn() {
  planned_ = false;
  nic& n = queues_->model;
  if (rng_.chance(options_.failing)) {
    if (rng_.chance(0.5)) {
      n.fail_receives = 1;
    } else {
      n.fail_write = n.fetched + 1 + static_cast<uint32_t>(rng_.below(20));
    }
  }
  take_in();
  for (uint64_t polls = 1 + rng_.below(2); polls > 0; polls--) poll();
  nic_write(&queues_->model, static_cast<uint32_t>(rng_.below(32)));
  if (rng_.chance(0.5)) look();
  check();
  if (work_left()) plan();
}

void KernelTransport::take_in() {
  const nic& n = queues_->model;
  bool more = true;
  while (more && n.rq_consumed != n.rq_posted) more = medium_.receive(*this, 1) > 0;
  port_waits_ = more;
}

void KernelTransport::on_datagram(ConstBytes datagram) {
  wire::DatagramHeader h;
  const bool ours = wire::parse_datagram(datagram, h) == wire::ParseError::kNone;
  if (datagram.size() > longest_ + wire::kDatagramHeader) return;
  if (ours && !wire::verify_datagram(datagram)) return;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(datagram.data());
  const auto size = static_cast<uint32_t>(datagram.size());
  if (!options_.immediates) {
    nic_receive(&queues_->model, DPA_CQE_SEND, 0, nullptr, bytes, size);
    return;
  }
  const Open& open = open_[0];
  const bool slices = open.serial != 0 && !open.dead && h.member == open.name.member;
  if (ours && slices && h.type == wire::DatagramType::kData && h.group_tag == open.name.tag) {
    nic_receive(&queues_->model, DPA_CQE_SEND_IMMEDIATE, h.chunk << 8 | (h.sequence & 0xff),
                nullptr, bytes + wire::kDatagramHeader,
                size - static_cast<uint32_t>(wire::kDatagramHeader));
  } else {
    whole_.emplace_back(datagram.begin(), datagram.end());
  }
}

void KernelTransport::poll() {
  int taken = 0;
  {
    // The control plane may run in the middle of a call.
    const dpa::Observing observing(&queues_->model, [this] {
      if (rng_.chance(0.1)) look();
    });
    taken = options_.kernel(&queues_->worker);
  }
  if (taken == DPA_FAILED) start_anew();
}

void KernelTransport::check() {
  const char* const broken = std::exchange(queues_->model.broken, nullptr);
  if (broken == nullptr) return;
  if (!options_.on_broken) {
    ADD_FAILURE() << "a rule of the NIC is broken: " << broken;
  } else {
    options_.on_broken(broken);
  }
}

bool KernelTransport::work_left() const {
  const Queues& q = *queues_;
  for (uint32_t slot = 0; slot < kSlices; slot++) {
    if (open_[slot].closing && !open_[slot].dead && !retired(slot)) return true;
  }
  return port_waits_ || q.model.rq_consumed != q.worker.received.index ||
         q.model.fetched != q.model.done || q.worker.progress.landed != q.worker.sq.index;
}

void KernelTransport::start_anew() {
  totals_.failures++;
  totals_.foreign += queues_->worker.progress.foreign;
  collect();
  looked_.clear();
  rest_looked_ = 0;
  for (Open& o : open_) o.dead = o.dead || o.serial != 0;
  check();
  make_queues();
}

// ---- the control plane ----

bool KernelTransport::landed(uint32_t horizon) const {
  const dpa_progress& p = queues_->worker.progress;
  return static_cast<int32_t>(p.landed - horizon) >= 0 || p.landed == p.horizon;
}

// Reads later words first. Chunks arrive in order, so a chunk found missing below one that was read
// has not been posted before it.
void KernelTransport::look() {
  Looked now;
  for (uint32_t slot = 0; slot < kSlices; slot++) {
    Open& o = open_[slot];
    if (o.serial == 0 || o.closing || o.dead) continue;
    for (size_t word = o.bitmap.size(); word-- > 0;) {
      const uint64_t bits = o.bitmap[word] & ~o.looked[word];
      if (bits == 0) continue;
      o.looked[word] |= bits;
      now.words.push_back({slot, o.serial, static_cast<uint32_t>(word), bits});
    }
  }
  now.rest = queues_->worker.rest.written;
  if (now.words.empty() && now.rest == rest_looked_) return;
  rest_looked_ = now.rest;
  now.horizon = queues_->worker.progress.horizon;
  looked_.push_back(std::move(now));
}

// Takes the words that were read and have landed.
void KernelTransport::collect() {
  dpa_rest& rest = queues_->worker.rest;
  for (; !looked_.empty() && landed(looked_.front().horizon); looked_.pop_front()) {
    const Looked& l = looked_.front();
    words_.insert(words_.end(), l.words.rbegin(), l.words.rend());
    for (; rest.taken != l.rest; rest.taken++) {
      const uint32_t entry = rest.taken & rest.mask;
      const auto* const at =
          reinterpret_cast<const std::byte*>(queues_->rest.get()) + size_t{entry} * rest.stride;
      whole_.emplace_back(at, at + rest.bytes[entry]);
      totals_.handed_on++;
    }
  }
}

bool KernelTransport::busy() const {
  bool any = planned_ || !words_.empty() || !whole_.empty() || !looked_.empty();
  for (const Open& o : open_) any = any || o.closing;
  return any;
}

bool KernelTransport::has_slices() const {
  bool any = false;
  for (const Open& o : open_) any = any || o.serial != 0;
  return any;
}

size_t KernelTransport::receive(DatagramSink& sink, size_t) {
  look();
  collect();
  size_t count = 0;
  for (const Word& w : std::exchange(words_, {})) {
    const Open& o = open_[w.slot];
    if (o.serial != w.serial) continue;
    count++;
    totals_.placed += static_cast<uint64_t>(std::popcount(w.bits));
    sink.on_placed(SliceName(o.name), w.word, w.bits);
  }
  for (; !whole_.empty(); count++) {
    const std::vector<std::byte> datagram = std::move(whole_.front());
    whole_.pop_front();
    sink.on_datagram(datagram);
  }
  for (uint32_t slot = 0; slot < kSlices; slot++) {
    Open& o = open_[slot];
    if (!o.closing || !(o.dead || retired(slot))) continue;
    const SliceName name = o.name;
    SliceCounts counts;
    if (!o.dead) {
      const dpa_counts& c = queues_->slices[slot].counts;
      counts = {c.duplicates, c.misfits};
      uint32_t bits = 0;
      for (const uint64_t word : o.bitmap) bits += static_cast<uint32_t>(std::popcount(word));
      if (c.present != bits && queues_->model.broken == nullptr) {
        queues_->model.broken = "counts other than bits";
      }
      queues_->model.regions[1 + slot].revoked = 1;
    }
    check();
    o = {};
    totals_.retired++;
    count++;
    sink.on_retired(name, counts);
  }
  return count > 0 ? count : busy() ? 1 : 0;
}

KernelTransport::Open* KernelTransport::find(const SliceName& name) {
  for (Open& o : open_) {
    if (o.serial != 0 && o.name == name) return &o;
  }
  return nullptr;
}

bool KernelTransport::retired(uint32_t slot) const {
  const dpa_slice& slice = queues_->slices[slot];
  return (slice.wanted & 1) == 0 && slice.retired == slice.wanted >> 1;
}

bool KernelTransport::place(const PlacedStream& stream) {
  const uint32_t slot =
      options_.immediates ? 0 : ((stream.name.sequence << 2) + stream.name.member) & (kSlices - 1);
  const uint64_t chunks = (stream.memory.length + stream.chunk - 1) / stream.chunk;
  if (open_[slot].serial != 0 || chunks == 0 || chunks >= 1u << 24 || stream.chunk > longest_) {
    totals_.refused++;
    return false;
  }
  totals_.slices++;
  Open& o = open_[slot];
  o.name = stream.name;
  o.serial = ++serial_;
  o.bitmap.assign((chunks + 63) / 64, 0);
  o.looked = o.bitmap;
  fill_slice(slot, stream, static_cast<uint32_t>(chunks));
  return true;
}

void KernelTransport::fill_slice(uint32_t slot, const PlacedStream& stream, uint32_t chunks) {
  dpa_slice& slice = queues_->slices[slot];
  nic_region& region = queues_->model.regions[1 + slot];
  const uint64_t address = kDestination + slot * kApart;
  region = {address, reinterpret_cast<uint8_t*>(stream.memory.data()), stream.memory.length,
            0x7700 + 1 + slot, 0};
  std::array<std::byte, wire::kDatagramHeader> head{};
  wire::seal_datagram(head, stream.header, {});
  slice.match.head = wire::load<uint32_t>(head.data() + 4) & ~kLastFlag;
  slice.match.tag = wire::load<uint64_t>(head.data() + 8);
  slice.match.operation = wire::load<uint64_t>(head.data() + 16);
  slice.match.member =
      options_.immediates ? stream.name.sequence & 0xff : wire::load<uint32_t>(head.data() + 28);
  const auto chunk = static_cast<uint32_t>(stream.chunk);
  const auto tail = static_cast<uint32_t>(stream.memory.length - size_t{chunks - 1} * stream.chunk);
  const uint32_t before = DPA_GRH_BYTES + (options_.immediates ? 0u : uint32_t{DPA_HEADER_BYTES});
  const uint64_t key = uint64_t{be32(kStagingKey)} << 32;
  slice.destination = address;
  slice.key = be32(region.key);
  slice.full = be32(chunk) | key;
  slice.tail = be32(tail) | key;
  slice.bitmap = open_[slot].bitmap.data();
  slice.full_bytes = be32(before + chunk);
  slice.tail_bytes = be32(before + tail);
  slice.first = 0;
  slice.count = chunks;
  slice.last = chunks - 1;
  slice.stride = chunk;
  slice.counts = {};
  slice.wanted = (slice.retired + 1) << 1 | 1;
  queues_->worker.attention++;
}

bool KernelTransport::retire(const SliceName& name) {
  Open* const o = find(name);
  if (o == nullptr) return true;
  if (o->dead) {
    *o = {};
    return true;
  }
  o->closing = true;
  queues_->slices[static_cast<size_t>(o - open_.data())].wanted &= ~1u;
  queues_->worker.attention++;
  plan();
  return false;
}

// Like destroying its queue pair: afterwards nothing of any slice is in flight.
void KernelTransport::revoke(const SliceName& name) {
  if (Open* const o = find(name)) {
    if (!o->dead) start_anew();
    *o = {};
    totals_.revoked++;
  }
}

// ---- all endpoints ----

KernelTotals& kernel_totals() {
  static KernelTotals totals;
  return totals;
}

KernelOptions& kernel_options() {
  static KernelOptions options{dpa_observed_receive_for_engine, false, 0, {}};
  return options;
}

namespace {

class Harts final : public test::Surroundings, private SimNetwork::Listener {
 public:
  explicit Harts(SimNetwork& network) : network_(network) { network.set_listener(this); }

  std::unique_ptr<Transport> wrap(std::unique_ptr<Transport> medium, size_t endpoint) override {
    auto made = std::make_unique<KernelTransport>(std::move(medium), network_, mix64(endpoint + 1),
                                                  kernel_options(), kernel_totals());
    at_.resize(std::max(at_.size(), endpoint + 1));
    at_[endpoint] = made.get();
    made->gone = [this, endpoint] { at_[endpoint] = nullptr; };
    return made;
  }
  bool waiting(size_t endpoint) const override { return at_[endpoint]->busy(); }

 private:
  void on_news(size_t endpoint) override {
    if (endpoint < at_.size() && at_[endpoint] != nullptr) at_[endpoint]->on_news();
  }
  void on_turn(uint32_t) override {}

  SimNetwork& network_;
  std::vector<KernelTransport*> at_;
};

// Installed for all clusters of this program, including those of the tests of tests/cpp/collective.
// They run a quarter of their seeds, unless the environment selects a number.
const bool kInstalled = [] {
  if (std::getenv("MCAST_TEST_SEEDS") == nullptr) setenv("MCAST_TEST_SHARE", "25", 0);
  test::surround() = [](SimNetwork& network) { return std::make_unique<Harts>(network); };
  return true;
}();

}  // namespace
}  // namespace mcast::offload
