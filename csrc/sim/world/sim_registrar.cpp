// A turn handles the records that have arrived, then runs the core. A connection to an unknown
// address is refused immediately; a connection whose other end dies breaks.
#include "sim/world/sim_registrar.h"

#include <utility>

#include "sim/world/sim_records.h"
#include "wire/record_stream.h"

namespace mcast::sim {

class SimRegistrar::Link final : public RecordLink {
 public:
  Link(SimRegistrar& home, uint32_t number, PeerId to) : home_(home), number_(number), to_(to) {}
  ~Link() override {
    if (home_.connections_.erase(number_) > 0 && !over_ && !home_.killed()) {
      send_record_frame(*home_.endpoint_, to_, {number_, true, {}});
    }
  }

  void send_text(const std::string& text) override {
    if (to_ == kNoPeer) return;
    send_record_frame(*home_.endpoint_, to_, {number_, false, wire::framed(text)});
  }
  Result<bool> next(wire::Admission& record, std::string& text) override {
    if (in_.next(text)) {
      const Status status = wire::decode_admission(text, record);
      if (!status.ok()) return status;
      return true;
    }
    if (in_.broken()) return Status(Code::kInvalidArgument, "no record");
    return false;
  }
  Status begun() const override {
    return to_ == kNoPeer ? Status(Code::kUnavailable, "connection refused") : Status();
  }

  void append(std::string_view bytes) { in_.append(bytes); }
  void set_over() { over_ = true; }

 private:
  SimRegistrar& home_;
  const uint32_t number_;
  const PeerId to_;
  bool over_ = false;  // the other side has ended it
  wire::RecordReader in_{wire::kMaxAdmission};
};

SimRegistrar::SimRegistrar(HostId host, Find find, SimThreads& all, const SimClock& clock,
                           const LaneCosts& costs)
    : SimThread(all, clock, costs),
      host_(host),
      find_(std::move(find)),
      core_([this](uint64_t group, size_t row, const NetAddress& address) {
        return connect(group, row, address);
      }) {}

SimRegistrar::~SimRegistrar() = default;

Status SimRegistrar::enter(uint64_t group, Job job) {
  if (!endpoint_) {
    endpoint_ = threads().attach(host_, *this);
    run_as(*endpoint_);
  }
  core_.enter(group, std::move(job), shown());
  on_news();
  return {};
}

void SimRegistrar::settled(uint64_t group, const std::vector<uint64_t>& uids) {
  core_.settled(group, uids);
}

void SimRegistrar::lost(uint64_t group, uint64_t uid, const std::string& why) {
  if (core_.lost(group, uid, why, shown())) on_news();
}

void SimRegistrar::parted(uint64_t group, uint64_t uid) {
  if (core_.parted(group, uid, shown())) on_news();
}

std::vector<AggregatorStats> SimRegistrar::stats(uint64_t group) const {
  return core_.stats(group);
}

void SimRegistrar::leave(uint64_t group) {
  if (core_.leave(group)) on_news();
}

std::unique_ptr<RecordLink> SimRegistrar::connect(uint64_t group, size_t row,
                                                  const NetAddress& address) {
  const PeerId to = find_(address).value_or(kNoPeer);
  const uint32_t number = next_++;
  auto link = std::make_unique<Link>(*this, number, to);
  if (to != kNoPeer) connections_[number] = {group, row, to, link.get()};
  // The aggregator of a guarded group sends first, so it must learn of the connection.
  if (to != kNoPeer && threads().security().on()) {
    send_record_frame(*endpoint_, to, {number, false, {}});
  }
  return link;
}

Nanos SimRegistrar::act(Nanos now) {
  (void)static_cast<Transport&>(*endpoint_).stream().poll(*this, now);
  core_.turn(now);
  return core_.next();
}

void SimRegistrar::on_frame(PeerId peer, Channel, ConstBytes frame) {
  const RecordFrame record = read_record_frame(frame);
  const auto at = connections_.find(record.connection);
  if (at == connections_.end() || at->second.to != peer) return;  // closed meanwhile
  at->second.link->append(record.bytes);
  if (record.end) at->second.link->set_over();
  arrived(record.connection,
          record.end ? Status(Code::kPeerLost, "it has closed the connection") : Status());
}

void SimRegistrar::on_peer_down(PeerId peer, const Status& why, bool) {
  std::vector<uint32_t> broken;
  for (const auto& [number, connection] : connections_) {
    if (connection.to == peer) broken.push_back(number);
  }
  for (const uint32_t number : broken) {
    connections_.at(number).link->set_over();
    arrived(number, why);
  }
}

void SimRegistrar::arrived(uint32_t number, const Status& status) {
  const Connection connection = connections_.at(number);
  core_.arrived(connection.group, connection.row, status, shown());
}

}  // namespace mcast::sim
