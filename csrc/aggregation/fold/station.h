// A station: one job's frames from its ranks, and from other stations of a tree, and its end. A job
// ends with the group (bye), with its last stream or soon after the first stream that ends, with a
// rank that breaks the protocol, or when no rank connects for a minute; its records and buffers are
// freed at once. Pure: frames and time are the input, frames the output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aggregation/fold/job.h"

namespace mcast::aggregation {

class Station {
 public:
  // A job ends after this time without any stream.
  static constexpr Nanos kLease = 60 * kSecond;
  // Time from the first stream that ends to the end of the job, which is useless by then: a rank
  // that has lost a station makes all others give it up, and one that has died has failed the
  // group.
  static constexpr Nanos kFarewell = 2 * kSecond;

  // All arguments but `params` outlive this object. `now`: time of admission.
  Station(const JobParams& params, const Planner& planner, Outlet& out, Counters& counters,
          Nanos now);

  // Most other stations with which a job may exchange frames.
  static constexpr uint32_t kMostPartners = 4096;

  // A rank has connected. `from`: the rank whose uid the connection has proved; in the calls below
  // also another station, by the number that the planner gives it.
  void on_stream(Member from);
  // A frame from it, not yet verified. Valid during the call.
  void on_frame(Member from, ConstBytes frame, Nanos now);
  // Its stream has ended. It cannot come back: the group continues without this station.
  void on_stream_end(Member from, Nanos now);
  // The group has ended.
  void on_bye();

  // Call on every turn.
  void advance(Nanos now);
  Nanos deadline() const;

  // The reason why the job has ended; nothing: it has not.
  const std::optional<std::string>& closed() const { return closed_; }
  // Null: the job has ended.
  Job* job() { return job_ ? &*job_ : nullptr; }

 private:
  enum class Stream : uint8_t { kNone, kOpen, kEnded };

  Status dispatch(Member from, const wire::FrameHeader& header, ConstBytes body, Nanos now);
  Status dispatch_tree(Member from, const wire::FrameHeader& header, ConstBytes body, Nanos now);
  void on_ping(Member from, Nanos now);
  void close(std::string why);

  const uint64_t tag_;
  const Member self_;
  Outlet& out_;
  Counters& counters_;
  std::optional<Job> job_;
  std::vector<Stream> streams_;  // by rank
  uint32_t open_ = 0;
  Nanos unconnected_since_;  // while no stream is open
  Nanos until_ = kNever;
  Member left_ = kNoMember;  // the first member whose stream has ended
  std::optional<std::string> closed_;
};

}  // namespace mcast::aggregation
