// The service's thread: asks and goodbyes, ends of jobs, status. It moves no data; each station has
// a thread of its own. Every call is nonblocking except one poll().
#include "aggregation/server/aggregator.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <future>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "transport/registry.h"
#include "transport/udp/netif.h"

namespace mcast::service {
namespace {

constexpr Nanos kLongestWait = 10 * kSecond;

// Default interface of the stations: the one that has the address of --listen. Empty if none has
// it, or it listens on all addresses.
std::string interface_with(const IpAddress& address) {
  const auto interfaces = list_interfaces();
  if (!address.known() || !interfaces.ok()) return "";
  for (const Interface& i : *interfaces) {
    if (i.loopback && address.loopback() && address.is_v4()) return "=" + i.name;
    if (std::find(i.addresses.begin(), i.addresses.end(), address) == i.addresses.end()) continue;
    // By its name, unless that would select another address.
    return i.address == address ? "=" + i.name : address.text();
  }
  return "";
}

// Checked at the start, where the operator sees the error, and not reported to the first group that
// asks. The transport of a group is not known yet: unless the settings name one, the transport that
// works on every host is checked.
Status transport_problem(const Config& config) {
  const TransportType* const asked = find_transport(config.transport);
  return (asked != nullptr ? *asked : fallback_transport())
      .make(config, LaneId::kReduce, nullptr)
      .status();
}

}  // namespace

Aggregator::Aggregator(const Options& options, std::shared_ptr<const AskGuard> guard, DealWork deal)
    : options_(options),
      jobs_(options_, door_,
            on_threads(
                options_, std::move(deal), [this] { wake(); }, std::move(guard))) {}

Result<std::unique_ptr<Aggregator>> Aggregator::start(const Options& options, DealWork deal) {
  Options actual = options;
  AdmissionListener trial;
  if (Status status = trial.open(options.host, options.port); !status.ok()) return status;
  if (actual.config.interface.empty()) {
    actual.config.interface = interface_with(trial.address().address);
  }
  if (Status status = transport_problem(actual.config); !status.ok()) return status;
  auto guard = guard_of(actual.config);
  if (!guard.ok()) return guard.status();
  std::unique_ptr<Aggregator> made(
      new Aggregator(actual, std::move(guard).value(), std::move(deal)));
  made->door_ = std::move(trial);
  if (Status status = made->open(); !status.ok()) return status;
  return made;
}

Status Aggregator::open() {
  started_ = monotonic_now();
  wake_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_.valid()) return Status::system(errno, "eventfd");
  const std::string path = options_.status.empty() ? default_status_path() : options_.status;
  const Status status = path.empty() ? Status() : status_.open(path);
  if (!status.ok() && !options_.status.empty()) return status;
  if (status_.path().empty()) {
    log(LogLevel::kWarn, "there is no status socket: %s; give --status PATH",
        status.ok() ? "neither /run/torch-mcast-aggregator nor $XDG_RUNTIME_DIR can be written"
                    : status.message().c_str());
  }
  thread_ = named_thread("mcast-agg", [this] { loop(); });
  log(LogLevel::kInfo, "aggregator: listens at %s", address().c_str());
  return {};
}

Aggregator::~Aggregator() { stop(0); }

std::string Aggregator::address() const {
  const Endpoint& at = door_.address();
  return at.address.known() ? at.text() : "*:" + std::to_string(at.port);
}

uint16_t Aggregator::port() const { return door_.address().port; }

void Aggregator::wake() noexcept {
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Aggregator::end(Nanos patience) {
  const Nanos at = monotonic_now() + patience;
  Nanos before = stop_at_.load();
  while (at < before && !stop_at_.compare_exchange_weak(before, at)) {
  }
  wake();
}

void Aggregator::stop(Nanos patience) {
  end(patience);
  if (thread_.joinable()) thread_.join();
}

Report Aggregator::report() {
  auto told = std::make_shared<std::promise<Report>>();
  std::future<Report> report = told->get_future();
  std::function<void()> command = [this, told] { told->set_value(describe(monotonic_now())); };
  bool first = false;
  if (!commands_.try_push(command, first)) return {};
  wake();
  return report.get();
}

Report Aggregator::describe(Nanos now) const {
  Report report;
  report.address = address();
  report.now = now;
  report.started = started_;
  report.quota = options_.quota;
  report.quota_per_job = options_.job_quota();
  report.most_jobs = options_.jobs;
  report.lanes = options_.lanes;
  report.rate = options_.rate;
  jobs_.describe(report);
  return report;
}

void Aggregator::loop() {
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = turn();
      if (goes_on) wait_and_serve();
    } catch (const std::exception& error) {  // no memory for a new connection
      if (trouble_.allow(monotonic_now())) {
        log(LogLevel::kWarn, "aggregator: a client could not be served: %s", error.what());
      }
    }
  }
  status_.close();
  commands_.close(batch_);
  for (const auto& command : batch_) command();
  batch_.clear();
  over_.store(true);
}

bool Aggregator::turn() {
  const Nanos now = monotonic_now();
  commands_.drain(batch_);
  for (const auto& command : batch_) command();
  batch_.clear();
  jobs_.advance(now);
  const Nanos stop_at = stop_at_.load();
  if (stop_at == kNever) return true;
  door_.stop_listening();
  jobs_.drain();
  if (now >= stop_at) jobs_.end_all("the aggregator ends", now);
  return !jobs_.empty();
}

void Aggregator::wait_and_serve() {
  list_.clear();
  list_.push_back({wake_.get(), POLLIN, 0});
  door_.watch(list_);
  const size_t status_from = list_.size();
  status_.watch(list_);
  const Nanos before = monotonic_now();
  const Nanos stop_at = stop_at_.load();  // after it, stations wake this thread when done
  const Nanos next = std::min({door_.deadline(), jobs_.deadline(), status_.deadline(),
                               stop_at > before ? stop_at : kNever});
  const Nanos wait =
      next == kNever ? kLongestWait : std::clamp<Nanos>(next - before, 0, kLongestWait);
  const auto milliseconds = static_cast<int>((wait + kMilli - 1) / kMilli);
  if (::poll(list_.data(), list_.size(), milliseconds) < 0) return;
  uint64_t count = 0;
  while (::read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
  const Nanos now = monotonic_now();
  const std::span<const pollfd> all(list_);
  door_.serve(all.subspan(1, status_from - 1), now, jobs_);
  status_.serve(all.subspan(status_from), now, [this, now] { return json_text(describe(now)); });
}

}  // namespace mcast::service
