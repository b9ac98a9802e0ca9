// An aggregator in this process on loopback, real sockets that ask it for admission, and the ranks
// of a job as raw stream endpoints that a test drives by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "aggregation/server/aggregator.h"
#include "transport/transport.h"
#include "transport/udp/socket.h"
#include "wire/frame.h"

namespace mcast::test {

inline constexpr size_t kSegment = 4096;

// A reduce_scatter of int32 with every segment of every shard dealt to station 0 in order.
service::DealWork simple_deal();

service::Options loopback_options();

// One connection to an aggregator's listener. All waits end after some seconds.
class Asker {
 public:
  explicit Asker(uint16_t port);
  bool send(const wire::Admission& record);
  bool send_raw(std::string_view bytes);
  // The next record, or nothing if the connection has ended or no record arrived in time.
  std::optional<wire::Admission> receive();
  // Returns true once the other side has closed.
  bool closed();
  void hang_up() { fd_.reset(); }

 private:
  Fd fd_;
  wire::RecordReader in_{wire::kMaxAdmission};
};

// A request that the aggregator accepts.
wire::Ask some_ask(uint32_t ranks, uint64_t tag = 77);

// The roster that ranks send to a station, which is the only one in it.
wire::StationRoster roster_of(const wire::Accept::Station& station);

// The ranks of one group, played by raw endpoints on loopback.
class Ranks {
 public:
  explicit Ranks(uint32_t count, uint64_t tag = 77);
  ~Ranks();

  // A request with the ranks' uids.
  wire::Ask ask() const;
  // Connects all ranks to the station; they send it the roster.
  void meet(const wire::Accept::Station& station);
  void part(Member rank);  // the rank vanishes without a goodbye
  // All ranks send a goodbye.
  void leave();

  // All ranks call reduce_scatter with `segments` segments per rank; the values depend on `seed`.
  // Returns true if every owner gets every result in time and exact.
  bool reduce_scatter(Sequence sequence, uint32_t segments, uint32_t seed);
  void open(Member rank, Sequence sequence, uint32_t segments);
  // Sends the rank's contributions up to number `end` that were not sent before.
  void contribute(Member rank, Sequence sequence, uint32_t end, uint32_t segments, uint32_t seed);
  // The rank was granted the numbers below this.
  uint32_t granted(Member rank) const;
  void send(Member rank, Channel channel, wire::FrameHeader header, ConstBytes body);
  // Runs until `done` or until some seconds have passed.
  bool pump(const std::function<bool()>& done);
  // Returns true if the rank gets a reply to its ping.
  bool ping(Member rank);
  // Returns true once the station's end has reached the rank.
  bool lost(Member rank);

  uint64_t tag() const { return tag_; }

 private:
  struct Rank;
  wire::Descriptor descriptor(uint32_t segments) const;
  const uint64_t tag_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// Waits until it holds, at most some seconds.
bool eventually(const std::function<bool()>& holds);

}  // namespace mcast::test
