// Contributions are small integers that depend on rank, segment and place, so that a sum with a
// missing, an additional or a misplaced contribution has another value.
#include "aggregation/service_world.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/element.h"
#include "base/socket_address.h"
#include "base/version.h"
#include "runtime/rendezvous.h"
#include "support/until.h"
#include "transport/udp/udp_transport.h"
#include "wire/frame.h"
#include "wire/protocol_version.h"

namespace mcast::test {
namespace {

constexpr Nanos kPatience = 60 * kSecond;
constexpr uint32_t kRoster = 1;

class SimpleList final : public aggregation::WorkList {
 public:
  SimpleList(uint32_t ranks, uint32_t segments) : ranks_(ranks), segments_(segments) {}
  uint32_t size() const override { return ranks_ * segments_; }
  aggregation::ListEntry at(uint32_t number) const override {
    return {.segment = number / ranks_,
            .owner = static_cast<Member>(number % ranks_),
            .bytes = kSegment,
            .own_kept = false};
  }

 private:
  const uint32_t ranks_, segments_;
};

int32_t value(uint32_t seed, Member rank, uint32_t number, uint32_t place) {
  return static_cast<int32_t>(seed * 1000003 + rank * 7919 + number * 104729 + place);
}

std::vector<std::byte> bytes_of(const std::vector<int32_t>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(int32_t));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

service::DealWork simple_deal() {
  return [](const wire::Ask& ask, const wire::StationRoster&, std::span<const Member>, size_t,
            const wire::Descriptor& d,
            size_t) -> Result<std::unique_ptr<const aggregation::WorkList>> {
    const auto ranks = static_cast<uint32_t>(ask.uids.size());
    return std::unique_ptr<const aggregation::WorkList>(
        std::make_unique<SimpleList>(ranks, static_cast<uint32_t>(d.bytes / kSegment)));
  };
}

service::Options loopback_options() {
  service::Options options;
  options.host = "127.0.0.1";
  options.port = 0;
  options.status = ::testing::TempDir() + "/mcast-agg-" + std::to_string(monotonic_now()) + ".sock";
  return options;
}

bool eventually(const std::function<bool()>& holds) {
  return until(holds, "a state of the aggregator");
}

// ---- connections that ask for admission ----

Asker::Asker(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  EXPECT_EQ(connect_to(fd_.get(), {IpAddress::v4(INADDR_LOOPBACK), port}), 0);
}

bool Asker::send(const wire::Admission& record) { return send_raw(wire::framed(encode(record))); }

bool Asker::send_raw(std::string_view bytes) {
  return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

std::optional<wire::Admission> Asker::receive() {
  for (std::string text; !in_.next(text);) {
    pollfd ready{fd_.get(), POLLIN, 0};
    char bytes[4096];
    if (::poll(&ready, 1, static_cast<int>(kPatience / kMilli)) != 1) return std::nullopt;
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    if (got <= 0) return std::nullopt;
    in_.append({bytes, static_cast<size_t>(got)});
    if (!in_.next(text)) continue;
    wire::Admission record;
    if (!decode_admission(text, record).ok()) return std::nullopt;
    return record;
  }
  return std::nullopt;
}

bool Asker::closed() {
  pollfd ready{fd_.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&ready, 1, static_cast<int>(kPatience / kMilli)) == 1 &&
         ::recv(fd_.get(), &byte, 1, 0) <= 0;
}

wire::Ask some_ask(uint32_t ranks, uint64_t tag) {
  wire::Ask ask;
  ask.version = version();
  ask.protocol = kProtocolVersion;
  ask.transport = "udp";
  ask.tag = tag;
  ask.name = "group \"of\" a test";
  for (uint32_t r = 0; r < ranks; r++) {
    ask.uids.push_back(1000 + r);
    ask.host_of.push_back(r);
  }
  ask.chunk = 1408;
  ask.incast = 1 << 20;
  ask.fold = "rank";
  ask.aggregate = "careful";
  ask.roster = kRoster;
  return ask;
}

// ---- ranks ----

struct Ranks::Rank : StreamSink {
  std::unique_ptr<Transport> transport;
  Member self = 0;
  PeerId station = kNoPeer;
  uint32_t granted = 0, sent = 0;
  std::set<uint32_t> results;
  bool exact = true, pong = false, down = false;
  std::vector<std::vector<int32_t>> expected;  // by number in the list

  void on_frame(PeerId, Channel, ConstBytes frame) override {
    wire::FrameHeader header;
    if (!wire::parse_frame(frame, header) || !wire::verify_frame(frame)) {
      exact = false;
      return;
    }
    const ConstBytes body = frame.subspan(wire::kFrameHeader);
    pong = pong || header.type == wire::FrameType::kPong;
    if (header.type == wire::FrameType::kReduceGrant) {
      wire::Reader in(body);
      granted = std::max(granted, in.get<uint32_t>());
    }
    if (header.type == wire::FrameType::kAggResult) {
      wire::AggResult result;
      exact = exact && wire::parse_agg_result(body, result) &&
              result.form == wire::ResultForm::kFinal && result.number < expected.size() &&
              results.insert(result.number).second;
      if (!exact) return;
      const auto want = bytes_of(expected[result.number]);
      exact = std::equal(want.begin(), want.end(), result.payload.begin(), result.payload.end());
    }
  }
  void on_peer_down(PeerId, const Status&, bool) override { down = true; }
};

Ranks::Ranks(uint32_t count, uint64_t tag) : tag_(tag) {
  UdpTransportOptions options;
  options.interface = "=lo";
  options.rcvbuf = 1 << 20;
  options.liveness_limit = 2 * kSecond;  // also the time for which a refusing station is retried
  for (uint32_t r = 0; r < count; r++) {
    auto rank = std::make_unique<Rank>();
    auto transport = make_udp_transport(options);
    EXPECT_TRUE(transport.ok());
    rank->transport = std::move(transport).value();
    rank->self = static_cast<Member>(r);
    ranks_.push_back(std::move(rank));
  }
}

Ranks::~Ranks() = default;

wire::Ask Ranks::ask() const {
  wire::Ask ask = some_ask(static_cast<uint32_t>(ranks_.size()), tag_);
  for (size_t r = 0; r < ranks_.size(); r++) {
    ask.uids[r] = ranks_[r]->transport->stream().address(true).uid;
  }
  return ask;
}

wire::StationRoster roster_of(const wire::Accept::Station& station) {
  wire::StationRoster roster;
  roster.version = kRoster;
  roster.stations.push_back({.process = 1,
                             .uid = station.uid,
                             .capacity = station.capacity,
                             .port = station.port,
                             .host = station.host,
                             .rack = ""});
  return roster;
}

void Ranks::meet(const wire::Accept::Station& station) {
  wire::Writer body;
  wire::put_roster(body, roster_of(station));
  for (const auto& rank : ranks_) {
    rank->station = rank->transport->stream().add_peer({station.uid, station.host, station.port});
    send(rank->self, Channel::kReduce, {wire::FrameType::kRoster, 1, rank->self, tag_, 0, 0},
         body.bytes());
  }
}

void Ranks::part(Member rank) { ranks_[rank]->transport.reset(); }

void Ranks::leave() {
  (void)pump([this] {
    bool all = true;
    for (const auto& rank : ranks_) {
      all = (!rank->transport || rank->transport->stream().close_peers(monotonic_now())) && all;
    }
    return all;
  });
  for (const auto& rank : ranks_) rank->transport.reset();
}

wire::Descriptor Ranks::descriptor(uint32_t segments) const {
  wire::Descriptor d;
  d.kind = wire::Kind::kReduceScatter;
  d.element = static_cast<uint8_t>(Element::kInt32);
  d.reduction = static_cast<uint8_t>(Reduction::kSum);
  d.bytes = segments * kSegment;
  return d;
}

void Ranks::send(Member rank, Channel channel, wire::FrameHeader header, ConstBytes body) {
  std::vector<std::byte> head(wire::kFrameHeader);
  const ConstBytes bodies[] = {body};
  wire::write_frame_header(head.data(), header, bodies);
  const ConstBytes parts[] = {head, body};
  ranks_[rank]->transport->stream().send(ranks_[rank]->station, channel, parts);
}

void Ranks::open(Member rank, Sequence sequence, uint32_t segments) {
  const wire::Descriptor d = descriptor(segments);
  wire::Writer body;
  wire::put_agg_open(body, {kRoster, d});
  send(rank, Channel::kReduce, {wire::FrameType::kAggOpen, 1, rank, tag_, sequence, d.hash()},
       body.bytes());
}

uint32_t Ranks::granted(Member rank) const { return ranks_[rank]->granted; }

void Ranks::contribute(Member rank, Sequence sequence, uint32_t end, uint32_t segments,
                       uint32_t seed) {
  const uint32_t hash = descriptor(segments).hash();
  for (Rank& r = *ranks_[rank]; r.sent < end; r.sent++) {
    std::vector<int32_t> values(kSegment / sizeof(int32_t));
    for (uint32_t i = 0; i < values.size(); i++) values[i] = value(seed, rank, r.sent, i);
    wire::Writer body;
    wire::put_reduce_head(body, r.sent, 1.0);
    for (const std::byte b : bytes_of(values)) body.put<uint8_t>(static_cast<uint8_t>(b));
    send(rank, Channel::kReduce, {wire::FrameType::kReduceData, 1, rank, tag_, sequence, hash},
         body.bytes());
  }
}

bool Ranks::reduce_scatter(Sequence sequence, uint32_t segments, uint32_t seed) {
  const auto ranks = static_cast<uint32_t>(ranks_.size());
  for (const auto& rank : ranks_) {
    rank->granted = rank->sent = 0;
    rank->results.clear();
    rank->expected.assign(ranks * segments, std::vector<int32_t>(kSegment / sizeof(int32_t)));
    for (uint32_t number = 0; number < ranks * segments; number++) {
      for (uint32_t i = 0; i < rank->expected[number].size(); i++) {
        uint32_t sum = 0;
        for (uint32_t r = 0; r < ranks; r++) {
          sum += static_cast<uint32_t>(value(seed, static_cast<Member>(r), number, i));
        }
        rank->expected[number][i] = static_cast<int32_t>(sum);
      }
    }
    open(rank->self, sequence, segments);
  }
  const bool all = pump([&] {
    bool done = true;
    for (const auto& rank : ranks_) {
      contribute(rank->self, sequence, rank->granted, segments, seed);
      done = done && rank->results.size() == segments;
    }
    return done;
  });
  for (const auto& rank : ranks_) {
    if (!rank->exact) return false;
    for (const uint32_t number : rank->results) {
      if (number % ranks != rank->self) return false;
    }
  }
  return all;
}

bool Ranks::pump(const std::function<bool()>& done) {
  for (const Nanos end = monotonic_now() + kPatience; monotonic_now() < end;) {
    if (done()) return true;
    size_t events = 0;
    for (const auto& rank : ranks_) {
      if (rank->transport) events += rank->transport->stream().poll(*rank, monotonic_now());
    }
    if (events == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return done();
}

bool Ranks::ping(Member rank) {
  ranks_[rank]->pong = false;
  send(rank, Channel::kControl, {wire::FrameType::kPing, 1, rank, tag_, 0, 0}, {});
  return pump([this, rank] { return ranks_[rank]->pong; });
}

bool Ranks::lost(Member rank) {
  return pump([this, rank] { return ranks_[rank]->down; });
}

}  // namespace mcast::test
