// The jobs of an aggregator: who has been let in by whom, with which stations, what that takes, and
// how each one ends. A job ends when its asker says so, when one of its stations ends (all ranks
// have left it, a rank broke the protocol, none came for a minute), or when nobody has asked for it
// any more and nothing has come for a minute; then its threads, endpoints and memory go.
//
// Not thread-safe: one thread calls everything. Nothing here blocks.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "service/admission.h"
#include "service/job_surroundings.h"
#include "service/links.h"
#include "service/report.h"
#include "service/station_runner.h"

namespace mcast::service {

class Jobs final : public Visitor {
 public:
  // A job whose asker's connection is gone may live without traffic for so long.
  static constexpr Nanos kLonely = 60 * kSecond;
  // For the goodbye of a job's stations.
  static constexpr Nanos kGoodbye = kSecond;
  // Jobs that have ended and are told of.
  static constexpr size_t kMostEnded = 16;

  // `options` and `links` outlive this object.
  Jobs(const Options& options, Links& links, JobSurroundings here);

  void on_link(LinkId link) override;
  // A host that --allow names, or whose job is served.
  bool knows(uint32_t host) const override;
  void on_record(LinkId link, uint32_t host, std::string_view record, Nanos now) override;
  void on_link_end(LinkId link, bool nonsense) override;

  // Ends what is to end, forgets what has ended.
  void advance(Nanos now);
  // When advance() has something to do that nothing wakes for.
  Nanos deadline() const;

  // Askers are told that the aggregator is about to end; nobody is let in any more.
  void drain();
  bool draining() const { return draining_; }
  void end_all(const std::string& why, Nanos now);
  // No job is left, nor one that is ending.
  bool empty() const { return jobs_.empty(); }

  void describe(Report& report) const;

 private:
  struct Job {
    uint32_t number = 0;
    LinkId link = 0;  // of its asker; 0: gone
    std::string name;
    uint32_t ranks = 0, hosts = 0;
    uint64_t quota = 0, descriptors = 0;
    Nanos since = 0;
    bool ending = false;
    uint32_t asker = 0;  // host
    std::vector<std::unique_ptr<StationRunner>> stations;
    // Sums over stations at the last two looks, a second apart.
    struct Sample {
      Nanos at = 0;
      uint64_t in = 0, out = 0;
      std::vector<Nanos> cpu;  // by station
    };
    Sample before, last;
    Nanos heard = 0;  // when something has last come, or its asker was there, to within a second
  };

  void ask(LinkId link, uint32_t host, std::string_view record, Nanos now);
  // What the MACs of a connection's records cover besides: they are good on no other one.
  std::string nonce(LinkId link) const;
  // Whether groups with the security of this ask's heading are served here, and it is one's;
  // nothing: so it is, and the rest of the record may be read.
  std::optional<Rejection> distrust(LinkId link, const wire::Ask& heading,
                                    std::string_view record) const;
  // The job's stations, or why there are none.
  std::variant<std::vector<std::unique_ptr<StationRunner>>, Rejection> start(const wire::Ask& ask,
                                                                             const Grant& grant);
  wire::Accept acceptance(const Job& job, const Grant& grant) const;
  // What is sent for it: in a guarded aggregator with a proof that belongs to this ask.
  std::string proved_accept(LinkId link, std::string_view asked, const std::string& yes) const;
  void refuse(LinkId link, const Rejection& rejection, uint32_t host, Nanos now);
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
