// One thread, one transport, one job: what drives a station (aggregation/station.h). Jobs share
// nothing but the CPUs and the link, so one that floods its stations, or breaks them, harms no
// other.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/station.h"
#include "base/counters.h"
#include "service/report.h"
#include "service/station_planner.h"
#include "transport/transport.h"

namespace mcast::service {

// How many jobs of the process move data now. Any thread.
class BusyJobs {
 public:
  // One job's part of the count: busy while one of its stations is.
  class Job {
   public:
    explicit Job(BusyJobs& all) : all_(all) {}
    void station_begins() {
      if (stations_.fetch_add(1) == 0) all_.jobs_.fetch_add(1);
    }
    void station_ends() {
      if (stations_.fetch_sub(1) == 1) all_.jobs_.fetch_sub(1);
    }
    uint32_t jobs() const { return std::max(1u, all_.jobs_.load()); }

   private:
    BusyJobs& all_;
    std::atomic<uint32_t> stations_{0};
  };

 private:
  std::atomic<uint32_t> jobs_{0};
};

struct StationSpec {
  std::string name;  // of the thread, at most 15 bytes
  wire::Ask ask;
  aggregation::JobParams params;
  DealWork deal;
  std::shared_ptr<BusyJobs::Job> busy;
  // The answer of ended() or finished() has changed. On the station's thread; must not block.
  std::function<void()> on_end;
};

class StationThread final : private StreamSink, private DatagramSink, private aggregation::Outlet {
 public:
  // `transport` expects nobody yet. Throws where no thread can be had.
  StationThread(StationSpec spec, std::unique_ptr<Transport> transport);
  // Ends the thread, within the patience that end() was given.
  ~StationThread() override;

  // Where its stream endpoint is; capacity is the caller's to set.
  wire::Accept::Station where() const;
  uint32_t largest_datagram() const { return largest_datagram_; }

  // The station says goodbye to its ranks, at most for `patience`, and ends. Also needed where it
  // has ended by itself. Any thread, any number of times: the first one counts.
  void end(Nanos patience);
  // Why the job has ended here; nothing: it has not. Any thread.
  std::optional<std::string> ended() const;
  // The thread has nothing more to do: the destructor does not wait. Any thread.
  bool finished() const { return finished_.load(); }
  // As of a moment ago. Any thread.
  StationReport report() const;

 private:
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override;
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override;
  void on_datagram(ConstBytes) override {}  // no station is spoken to by multicast
  void send(Member to, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(Member to, Channel channel) const override;
  uint32_t busy_jobs() const override { return spec_.busy->jobs(); }

  void loop();
  // Whether something has come.
  bool turn();
  // Until traffic, a wake-up or the next deadline.
  void sleep();
  void say_goodbye();
  void on_roster(Member from, ConstBytes frame);
  // The stations of a tree that this one exchanges frames with.
  void meet_partners(const wire::StationRoster& roster);
  void note(const wire::FrameHeader& header, size_t bytes);
  void set_busy(bool busy);
  void publish(Nanos now);
  void close(const std::string& why);

  const StationSpec spec_;
  const std::unique_ptr<Transport> transport_;
  const StreamAddress address_;
  const uint32_t largest_datagram_;
  Counters counters_;
  // Of the thread, once it runs.
  StationPlanner planner_;
  aggregation::Station station_;
  std::vector<PeerId> peers_;    // by rank, then by station of a tree; kNoPeer: not met
  std::vector<Member> members_;  // by peer
  std::vector<bool> connected_;  // by rank
  struct {
    StationReport report;
    bool changed = false;  // since it was
    Nanos published = 0;
  } live_;
  Nanos now_ = 0;
  uint64_t next_operation_ = 0;  // no rank has opened this one, nor a later one
  bool busy_ = false;

  std::atomic<Nanos> end_at_{kNever};  // the end of the goodbye; kNever: nobody has said end()
  std::atomic<bool> finished_{false};
  mutable std::mutex mutex_;
  StationReport report_;              // under mutex_
  std::optional<std::string> ended_;  // under mutex_
  std::thread thread_;
};

}  // namespace mcast::service
