// The jobs of an aggregator: which asker was granted which stations, the resources that they take,
// and how each job ends. A job ends when its asker requests it, when one of its stations ends (all
// ranks have left it, a rank broke the protocol, none came for a minute), or when it has no asker
// any more and no data has arrived for a minute; then its threads, endpoints and memory are
// released.
//
// Not thread-safe: one thread calls everything. No call blocks.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/server/admission.h"
#include "aggregation/server/job_surroundings.h"
#include "aggregation/server/links.h"
#include "aggregation/server/report.h"
#include "aggregation/server/station_runner.h"
#include "base/log.h"

namespace mcast::service {

class Jobs final : public Visitor {
 public:
  // Time that a job without traffic may live after its asker's connection is gone.
  static constexpr Nanos kSilenceLimit = 60 * kSecond;
  // Time limit for the goodbye of a job's stations.
  static constexpr Nanos kGoodbye = kSecond;
  // Number of ended jobs kept for the report.
  static constexpr size_t kMostEnded = 16;

  // `options` and `links` must outlive this object.
  Jobs(const Options& options, Links& links, JobSurroundings here);

  void on_link(LinkId link) override;
  // Returns true for a host that --allow names, or whose job is served.
  bool knows(const IpAddress& host) const override;
  void on_record(LinkId link, const IpAddress& host, std::string_view record, Nanos now) override;
  void on_link_end(LinkId link, bool nonsense) override;

  // Ends jobs that are to end, removes those that have ended.
  void advance(Nanos now);
  // Time at which advance() has work for which there is no wake-up.
  Nanos deadline() const;

  // Notifies askers that the aggregator is about to end; no job is admitted any more.
  void drain();
  bool draining() const { return draining_; }
  void end_all(const std::string& why, Nanos now);
  // Returns true if no job is left, including those that are ending.
  bool empty() const { return jobs_.empty(); }

  void describe(Report& report) const;

 private:
  struct Job {
    uint32_t number = 0;
    LinkId link = 0;  // of its asker; 0 if the connection is gone
    std::string name;
    uint32_t ranks = 0, hosts = 0;
    uint64_t quota = 0, descriptors = 0;
    Nanos since = 0;
    bool ending = false;
    IpAddress asker{};  // host
    std::vector<std::unique_ptr<StationRunner>> stations;
    // Sums over stations at the last two readings, a second apart.
    struct Sample {
      Nanos at = 0;
      uint64_t in = 0, out = 0;
      std::vector<Nanos> cpu;  // by station
    };
    Sample before, last;
    Nanos heard = 0;  // last time that data arrived or its asker was there, accurate to a second
  };

  void ask(LinkId link, const IpAddress& host, std::string_view record, Nanos now);
  // Additional input of the MACs of a connection's records, so that they are valid on no other
  // connection.
  std::string nonce(LinkId link) const;
  // Returns an empty optional if groups with the security of this ask's heading are served here and
  // the ask is authentic; then the rest of the record may be read.
  std::optional<Rejection> distrust(LinkId link, const wire::Ask& heading,
                                    std::string_view record) const;
  // Returns the job's stations, or why there are none.
  std::variant<std::vector<std::unique_ptr<StationRunner>>, Rejection> start(const wire::Ask& ask,
                                                                             const Grant& grant);
  wire::Accept acceptance(const Job& job, const Grant& grant) const;
  // Returns the record that accepts it; a guarded aggregator adds a proof that belongs to this ask.
  std::string proved_accept(LinkId link, std::string_view asked, const std::string& yes) const;
  void refuse(LinkId link, const Rejection& rejection, const IpAddress& host, Nanos now);
  Job* job_of(LinkId link);
  InUse used() const;
  void end(Job& job, const std::string& why, Nanos now);
  void look_at(Job& job, Nanos now);
  static void sample(Job& job, Nanos now);

  const Options& options_;
  Links& links_;
  const JobSurroundings here_;
  BusyJobs busy_;
  std::deque<Job> jobs_;
  std::deque<EndedJob> ended_;
  std::array<uint64_t, kRefusals> refused_{};
  uint64_t accepted_ = 0;
  bool draining_ = false;
  Nanos next_look_ = 0;
  RateLimit refusal_log_{kSecond};
};

}  // namespace mcast::service
