// Stations are made when a job is admitted and belong to it. A station that has ended by itself
// reports that through `wake`; the job's other stations are then ended too, and the job is removed,
// and its quota released, when all their threads have finished. Once a second the totals of the
// stations are read: this gives rates, and shows whether a job without an asker is still in use.
#include "aggregation/server/jobs.h"

#include <algorithm>
#include <exception>

#include "base/hex.h"
#include "base/log.h"
#include "crypto/hash.h"
#include "crypto/signed_text.h"
#include "transport/udp/socket.h"
#include "wire/bytes.h"

namespace mcast::service {
namespace {

constexpr Nanos kLookEvery = kSecond;

}  // namespace

Jobs::Jobs(const Options& options, Links& links, JobSurroundings here)
    : options_(options), links_(links), here_(std::move(here)) {}

Jobs::Job* Jobs::job_of(LinkId link) {
  const auto at =
      std::find_if(jobs_.begin(), jobs_.end(), [link](const Job& j) { return j.link == link; });
  return at == jobs_.end() ? nullptr : &*at;
}

InUse Jobs::used() const {
  InUse used;
  for (const Job& job : jobs_) {
    used.jobs++;
    used.quota += job.quota;
    used.descriptors += job.descriptors;
  }
  return used;
}

std::string Jobs::nonce(LinkId link) const {
  std::array<std::byte, 8> number;
  wire::store<uint64_t>(number.data(), link);
  return hex_text(crypto::hmac_sha256(here_.guard->nonces.bytes(), {number}));
}

void Jobs::on_link(LinkId link) {
  if (here_.guard) links_.send(link, wire::Challenge{here_.guard->mode, nonce(link)});
}

std::optional<Rejection> Jobs::distrust(LinkId link, const wire::Ask& heading,
                                        std::string_view record) const {
  if (heading.version.empty())
    return Rejection{AskRefusal::malformed, "the first record is not a request"};
  const std::string theirs = heading.security.empty() ? "off" : heading.security;
  const std::string ours = here_.guard ? here_.guard->mode : "off";
  if (theirs != ours) {
    return Rejection{AskRefusal::security, "the aggregator runs with security=" + ours +
                                               ", the group with security=" + theirs};
  }
  if (!here_.guard || crypto::without_mac(here_.guard->key(), crypto::said_over(nonce(link), "ask"),
                                          std::string(record))) {
    return std::nullopt;
  }
  // (Without the id of its secret: a peer that has proved nothing could use it to test guesses of
  // the secret.)
  return Rejection{
      AskRefusal::security,
      "the group's proof is wrong: the aggregator's secret was not made from this job's secret"};
}

bool Jobs::knows(const IpAddress& host) const {
  if (!options_.allow.empty()) return options_.allows(host);
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&host](const Job& job) { return !job.ending && job.asker == host; });
}

void Jobs::on_record(LinkId link, const IpAddress& host, std::string_view record, Nanos now) {
  Job* const job = job_of(link);
  if (job == nullptr) return ask(link, host, record, now);
  wire::Admission decoded;
  const bool bye =
      wire::decode_admission(record, decoded).ok() && std::holds_alternative<wire::Bye>(decoded);
  job->link = 0;
  links_.finish(link, now);
  end(*job, bye ? "the group has ended" : "the rank that requested it broke the protocol", now);
}

void Jobs::on_link_end(LinkId link, bool nonsense) {
  if (Job* const job = job_of(link)) {
    job->link = 0;
  } else if (nonsense) {
    refused_[static_cast<size_t>(AskRefusal::malformed)]++;
  }
}

void Jobs::ask(LinkId link, const IpAddress& host, std::string_view record, Nanos now) {
  if (!options_.allows(host)) {
    return refuse(link, {AskRefusal::network, host.text() + " is not in --allow"}, host, now);
  }
  const wire::Ask heading = wire::ask_heading(record);
  if (const auto no = other_version(heading)) return refuse(link, *no, host, now);
  if (const auto no = distrust(link, heading, record)) return refuse(link, *no, host, now);
  const auto read = read_ask(record);
  if (const auto* const no = std::get_if<Rejection>(&read)) return refuse(link, *no, host, now);
  const auto& asked = std::get<wire::Ask>(read);
  if (draining_) {
    return refuse(link, {AskRefusal::draining, "the aggregator is about to end"}, host, now);
  }
  auto let_in = admit(asked, options_, used(), here_.most_descriptors());
  if (const auto* const no = std::get_if<Rejection>(&let_in)) return refuse(link, *no, host, now);
  Grant& grant = std::get<Grant>(let_in);
  grant.params.id = static_cast<uint32_t>(accepted_ + 1);
  grant.params.deadline = options_.deadline;
  auto started = start(asked, grant);
  if (const auto* const no = std::get_if<Rejection>(&started)) return refuse(link, *no, host, now);

  accepted_++;
  Job& job = jobs_.emplace_back();
  job.number = grant.params.id;
  job.link = link;
  job.asker = host;
  job.name = asked.name;
  job.ranks = grant.params.hosts.members();
  job.hosts = grant.params.hosts.count();
  job.quota = grant.quota;
  job.descriptors = grant.descriptors;
  job.since = job.heard = now;
  job.stations = std::move(std::get<0>(started));
  sample(job, now);
  job.before = job.last;
  links_.keep(link);
  links_.send_text(link, proved_accept(link, record, wire::encode(acceptance(job, grant))));
  log(LogLevel::kInfo, "job %u: %s of %u ranks on %u hosts, requested by %s; %llu bytes reserved",
      job.number, job.name.c_str(), job.ranks, job.hosts, host.text().c_str(),
      static_cast<unsigned long long>(job.quota));
}

std::string Jobs::proved_accept(LinkId link, std::string_view asked, const std::string& yes) const {
  if (!here_.guard) return yes;
  const std::string name = nonce(link), about = crypto::digest_text(asked);
  return crypto::with_mac(here_.guard->key(), crypto::said_over(name, "accept", about), yes);
}

std::variant<std::vector<std::unique_ptr<StationRunner>>, Rejection> Jobs::start(
    const wire::Ask& ask, const Grant& grant) {
  here_.make_room(grant.descriptors);
  const auto busy = std::make_shared<BusyJobs::Job>(busy_);
  std::vector<std::unique_ptr<StationRunner>> stations;
  for (uint32_t lane = 0; lane < options_.lanes; lane++) {
    StationSpec spec;
    spec.name = "mcast-agg" + std::to_string(grant.params.id) + "." + std::to_string(lane);
    spec.ask = ask;
    spec.params = grant.params;
    spec.deal = here_.deal;
    spec.busy = busy;
    spec.on_end = here_.wake;
    try {
      Result<std::unique_ptr<StationRunner>> station = here_.run(std::move(spec));
      if (!station.ok()) return Rejection{AskRefusal::transport, station.status().message()};
      stations.push_back(std::move(station).value());
    } catch (const std::exception& error) {  // no memory, or no thread
      return Rejection{AskRefusal::system, std::string("a station cannot start: ") + error.what()};
    }
  }
  return stations;
}

wire::Accept Jobs::acceptance(const Job& job, const Grant& grant) const {
  wire::Accept accept;
  accept.process = here_.process;
  accept.quota = job.quota;
  accept.mtu = job.stations.front()->largest_datagram();
  for (const auto& station : job.stations) {
    accept.stations.push_back(station->where());
    accept.stations.back().capacity = grant.capacity;
  }
  return accept;
}

void Jobs::refuse(LinkId link, const Rejection& rejection, const IpAddress& host, Nanos now) {
  refused_[static_cast<size_t>(rejection.why)]++;
  links_.send(link, wire::Refuse{ask_refusal_name(rejection.why), rejection.text});
  links_.finish(link, now);
  if (!refusal_log_.allow(now)) return;
  log(LogLevel::kWarn, "refused %s (%s): %s", host.text().c_str(), ask_refusal_name(rejection.why),
      rejection.text.c_str());
}

void Jobs::end(Job& job, const std::string& why, Nanos now) {
  if (job.ending) return;
  job.ending = true;
  for (const auto& station : job.stations) station->end(kGoodbye);
  if (job.link != 0) links_.finish(job.link, now);
  job.link = 0;
  ended_.push_back({job.number, job.name, why, now});
  if (ended_.size() > kMostEnded) ended_.pop_front();
  log(LogLevel::kInfo, "job %u: ends: %s", job.number, why.c_str());
}

void Jobs::sample(Job& job, Nanos now) {
  job.before = std::move(job.last);
  job.last = {};
  job.last.at = now;
  for (const auto& station : job.stations) {
    const StationReport report = station->report();
    job.last.in += report.bytes_in;
    job.last.out += report.bytes_out;
    job.last.cpu.push_back(report.cpu);
  }
  if (job.link != 0 || job.last.in > job.before.in) job.heard = now;
}

void Jobs::look_at(Job& job, Nanos now) {
  sample(job, now);
  if (job.link == 0 && now - job.heard >= kSilenceLimit) {
    end(job,
        "the rank that requested it is gone, and nothing was received for " +
            seconds_text(kSilenceLimit),
        now);
  }
}

void Jobs::advance(Nanos now) {
  const bool look = now >= next_look_;
  if (look) next_look_ = now + kLookEvery;
  for (Job& job : jobs_) {
    for (const auto& station : job.stations) {
      if (const auto why = station->ended(); why && !job.ending) end(job, *why, now);
    }
    if (look && !job.ending) look_at(job, now);
  }
  std::erase_if(jobs_, [](const Job& job) {
    return job.ending && std::all_of(job.stations.begin(), job.stations.end(),
                                     [](const auto& station) { return station->finished(); });
  });
}

Nanos Jobs::deadline() const { return jobs_.empty() ? kNever : next_look_; }

void Jobs::drain() {
  if (draining_) return;
  draining_ = true;
  for (const Job& job : jobs_) {
    if (job.link != 0) links_.send(job.link, wire::Draining{});
  }
  log(LogLevel::kInfo, "draining: %zu jobs are asked to end", jobs_.size());
}

void Jobs::end_all(const std::string& why, Nanos now) {
  for (Job& job : jobs_) end(job, why, now);
}

void Jobs::describe(Report& report) const {
  report.draining = draining_;
  report.quota_used = used().quota;
  report.accepted = accepted_;
  report.refused = refused_;
  report.ended = {ended_.begin(), ended_.end()};
  for (const Job& job : jobs_) {
    JobReport& out = report.jobs.emplace_back();
    out.number = job.number;
    out.name = job.name;
    out.ranks = job.ranks;
    out.hosts = job.hosts;
    out.quota = job.quota;
    out.since = job.since;
    out.asked_for = job.link != 0;
    const double seconds =
        static_cast<double>(std::max<Nanos>(1, job.last.at - job.before.at)) / kSecond;
    out.rate_in = static_cast<double>(job.last.in - job.before.in) / seconds;
    out.rate_out = static_cast<double>(job.last.out - job.before.out) / seconds;
    for (size_t i = 0; i < job.stations.size(); i++) {
      out.stations.push_back(job.stations[i]->report());
      const Nanos before = i < job.before.cpu.size() ? job.before.cpu[i] : 0;
      out.cpu_shares.push_back(static_cast<double>(job.last.cpu[i] - before) / kSecond / seconds);
    }
  }
}

}  // namespace mcast::service
