// An aggregator in this process on loopback, askers with real sockets, and the ranks of a job as
// raw stream endpoints that a test drives by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "service/aggregator.h"
#include "transport/transport.h"
#include "transport/udp/socket.h"
#include "wire/frame.h"

namespace mcast::test {

inline constexpr size_t kSegment = 4096;

// Every segment of every shard, dealt to station 0 in order: of a reduce_scatter of int32.
service::DealWork simple_deal();

service::Options loopback_options();

// One connection to an aggregator's door. Nothing waits for longer than some seconds.
class Asker {
 public:
  explicit Asker(uint16_t port);
  bool send(const wire::Admission& record);
  bool send_raw(std::string_view bytes);
  // The next record; nothing: the connection has ended, or nothing came in time.
  std::optional<wire::Admission> receive();
  // The other side has closed.
  bool closed();
  void hang_up() { fd_.reset(); }

 private:
  Fd fd_;
  wire::RecordReader in_{wire::kMaxAdmission};
};

// An ask that the aggregator takes.
wire::Ask some_ask(uint32_t ranks, uint64_t tag = 77);

// The roster that ranks tell a station, which is alone in it.
wire::StationRoster roster_of(const wire::Accept::Station& station);

// The ranks of one group, played by raw endpoints on loopback.
class Ranks {
 public:
  explicit Ranks(uint32_t count, uint64_t tag = 77);
  ~Ranks();

  // With their uids.
  wire::Ask ask() const;
  // All ranks know the station, and tell it the roster.
  void meet(const wire::Accept::Station& station);
  void part(Member rank);  // it vanishes
  // Goodbye of all.
  void leave();

  // Everybody calls reduce_scatter of `segments` segments per rank; values by `seed`. True: every
  // owner has every result, exact, in time.
  bool reduce_scatter(Sequence sequence, uint32_t segments, uint32_t seed);
  void open(Member rank, Sequence sequence, uint32_t segments);
  // Its contributions up to number `end`, as far as none have been sent.
  void contribute(Member rank, Sequence sequence, uint32_t end, uint32_t segments, uint32_t seed);
  // Numbers below this were asked for.
  uint32_t granted(Member rank) const;
  void send(Member rank, Channel channel, wire::FrameHeader header, ConstBytes body);
  // Until `done` or some seconds have passed.
  bool pump(const std::function<bool()>& done);
  // A rank has got an answer to its ping.
  bool ping(Member rank);
  // The station's end has reached the rank.
  bool lost(Member rank);

  uint64_t tag() const { return tag_; }

 private:
  struct Rank;
  wire::Descriptor descriptor(uint32_t segments) const;
  const uint64_t tag_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// Until it holds, or for some seconds.
bool eventually(const std::function<bool()>& holds);

}  // namespace mcast::test
