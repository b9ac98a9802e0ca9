// A thread that waits for a result reads the ring itself, so that no other thread has to pass the
// result on: it counts itself among the waiters, and sleeps at the bell between checks. The link's
// own thread sleeps in poll(); the engine wakes it by a Look if there are completions and no thread
// waits at the bell. It also monitors the engine: the socket ends with the engine's process, and an
// engine that hangs stops counting its beats. An engine that is being replaced says so: its groups
// continue, and the link ends with the last of them.
//
// A thread that finds the link broken may hold a group's locks, so it only ends the socket. The
// link's thread, which holds none, sees that and notifies all listeners.
//
// Records are taken from the ring under one lock and passed on without it, because passing one on
// copies its results.
#include "host_engine/client/client_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/version.h"
#include "shm/futex.h"

namespace mcast {
namespace {

constexpr Nanos kBeat = 100 * kMilli;
constexpr Nanos kRetry = 20 * kMilli;  // retry interval of a connection
// Retry interval of a connection to an engine that others use as well.
constexpr Nanos kReplacedRetry = 200 * kMilli;
constexpr Nanos kRoom = 100 * kMicro;  // between checks of a full ring
constexpr Nanos kSendPatience = 5 * kSecond;

Status lost_status(pid_t pid, const std::string& how) {
  return Status(Code::kPeerLost,
                "engine of this host (process " + std::to_string(pid) + ") " + how);
}

}  // namespace

ClientLink::ClientLink(LocalSocket socket)
    : socket_(std::move(socket)),
      lent_{ClientArenas([this](const Segment& segment) { return offer(segment); }),
            OwnMemory([this](const ipc::MemoryOffer& m, int file) { return offer(m, file); })} {}

Result<std::shared_ptr<ClientLink>> ClientLink::connect(const std::string& path, Nanos patience,
                                                        const TrustedUser& trusted) {
  const Nanos deadline = monotonic_now() + patience;
  for (;;) {
    Result<Fd> fd = connect_to(path, SOCK_SEQPACKET, trusted);
    Status why = fd.status().with_context("engine of this host");
    const Nanos pause = fd.ok() ? kReplacedRetry : kRetry;
    if (fd.ok()) {
      std::shared_ptr<ClientLink> link(new ClientLink(LocalSocket(std::move(fd).value())),
                                       &ClientLink::destroy);
      why = link->greet(deadline);
      if (why.ok()) {
        link->start();
        return link;
      }
    }
    if (why.code() != Code::kUnavailable || monotonic_now() + pause > deadline) return why;
    ::usleep(static_cast<useconds_t>(pause / kMicro));
  }
}

// Hello, and Welcome with the link's memory, before the thread is started.
Status ClientLink::greet(Nanos deadline) {
  ipc::Hello hello;
  hello.product = version();
  engine_pid_ = socket_.peer_pid();
  const Status sent = socket_.send(ipc::bytes_of(control_of(hello)), {}, kSendPatience);
  if (!sent.ok()) return sent.with_context("engine of this host");
  Packet packet;
  LocalSocket::Got got = LocalSocket::Got::kNothing;
  while ((got = socket_.receive(packet)) == LocalSocket::Got::kNothing) {
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) return lost_status(engine_pid_, "does not answer");
    pollfd ready{socket_.fd(), POLLIN, 0};
    (void)::poll(&ready, 1, static_cast<int>(left / kMilli) + 1);
  }
  if (got == LocalSocket::Got::kEnd) {
    const Status why = lost_status(engine_pid_, "ended while this process connected to it");
    return Status(Code::kUnavailable, why.message());  // another engine may soon take its place
  }
  const auto message = ipc::parse_control(packet.bytes);
  ipc::Verdict refused;
  if (message && message->type == ipc::ControlType::kRefused && read(*message, refused)) {
    return Status(refused.code, "engine of this host: " + refused.text);
  }
  if (!message || message->type != ipc::ControlType::kWelcome || !read(*message, welcome_) ||
      packet.descriptors.size() != 1) {
    return Status(Code::kMismatch, "engine of this host: its answer to Hello cannot be read");
  }
  Result<Segment> memory =
      Segment::adopt(std::move(packet.descriptors[0]), ipc::kLinkBytes, "the engine's link");
  if (!memory.ok()) return memory.status();
  memory_ = std::move(memory).value();
  submissions_ = std::make_unique<ipc::RingWriter>(ipc::RingPlace{
      &page().submission, ipc::submission_of(memory_.data()), ipc::kSubmissionBytes});
  completions_ = std::make_unique<ipc::RingReader>(ipc::RingPlace{
      &page().completion, ipc::completion_of(memory_.data()), ipc::kCompletionBytes});
  return {};
}

void ClientLink::start() {
  beat_.since = monotonic_now();
  thread_ = named_thread("mcast-link", [this] { run(); });
}

void ClientLink::destroy(ClientLink* link) {
  if (!link->on_own_thread()) {
    delete link;
    return;
  }
  named_thread("mcast-link-end", [link] { delete link; }).detach();
}

ClientLink::~ClientLink() {
  ending_ = true;
  if (lost().ok()) (void)tell({ipc::ControlType::kBye, 0, {}});
  socket_.shutdown();
  if (thread_.joinable()) thread_.join();
}

void ClientLink::run() {
  while (read_socket()) {
    deliver();
    const Nanos now = monotonic_now();
    watch_engine(now);
    if (!lost().ok() || leave()) return;
    sleep();
  }
}

void ClientLink::sleep() {
  bool nothing = false;
  {
    const std::lock_guard<std::mutex> held(reading_);
    nothing = completions_->announce_sleep(page().client_asleep);
  }
  if (!nothing) return;
  pollfd ready{socket_.fd(), POLLIN, 0};
  (void)::poll(&ready, 1, static_cast<int>(kBeat / kMilli));
}

void ClientLink::watch_engine(Nanos now) {
  const uint64_t beat = page().engine_beats.load(std::memory_order_relaxed);
  if (beat != beat_.last) {
    beat_.last = beat;
    beat_.since = now;
  } else if (now - beat_.since > welcome_.silence) {
    note_that_it_may_run();
    fail(lost_status(engine_pid_, "has not run for " + seconds_text(now - beat_.since)));
  }
}

// Returns false if the link is over.
bool ClientLink::read_socket() {
  if (hand_on_messages()) return true;
  deliver();  // records that it wrote before
  fail(lost_status(engine_pid_, suspicion()));
  return false;
}

// Returns false if the link is over, and nobody has been notified yet.
bool ClientLink::hand_on_messages() {
  for (;;) {
    Packet packet;
    const LocalSocket::Got got = socket_.receive(packet);
    if (got != LocalSocket::Got::kPacket) return got == LocalSocket::Got::kNothing;
    auto message = ipc::parse_control(packet.bytes);
    if (!message) {
      suspect("sent a message that cannot be read");
      return false;
    }
    on_message(std::move(*message));
  }
}

void ClientLink::on_message(ipc::Control message) {
  Answered answered;
  ipc::Draining draining;
  const bool drains = message.type == ipc::ControlType::kDraining && read(message, draining);
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (drains) drain_limit_ = draining.limit;
    if (const auto it = creations_.find(message.call); it != creations_.end()) {
      return it->second->push(std::move(message));
    }
    const auto it = calls_.find(message.call);
    if (it == calls_.end()) return;  // Look; replies that nobody waits for any more
    answered = std::move(it->second);
    calls_.erase(it);
  }
  answered(std::move(message));
}

void ClientLink::deliver() {
  for (;;) {
    std::vector<ipc::Completed> taken;
    bool broken = false;
    {
      const std::unique_lock<std::mutex> held(reading_, std::try_to_lock);
      if (!held) return;
      auto found = ipc::RingReader::Found::kNothing;
      while ((found = completions_->read()) == ipc::RingReader::Found::kRecord) {
        auto record = ipc::parse_completed(completions_->record());
        if (!record) break;
        taken.push_back(std::move(*record));
      }
      broken = found != ipc::RingReader::Found::kNothing;
    }
    if (broken) suspect("wrote a record that cannot be read");
    if (taken.empty()) return;
    for (ipc::Completed& record : taken) {
      const uint32_t handle = std::visit([](const auto& r) { return r.group; }, record);
      std::shared_ptr<ClientListener> listener;
      {
        const std::lock_guard<std::mutex> held(mutex_);
        if (const auto it = listeners_.find(handle); it != listeners_.end()) {
          listener = it->second.lock();
        }
      }
      if (listener) listener->on_completed(std::move(record));
    }
    // A thread that waits for one of these sleeps at the bell.
    if (page().waiters.load(std::memory_order_seq_cst) > 0) ring(page().bell);
    if (broken) return;
  }
}

bool ClientLink::help(const std::function<bool()>& done, Nanos until) {
  auto& waiters = page().waiters;
  waiters.fetch_add(1, std::memory_order_seq_cst);
  bool over = false;
  for (;;) {
    const uint32_t bell = page().bell.load(std::memory_order_seq_cst);
    deliver();
    over = done();
    const Nanos now = monotonic_now();
    if (over || now >= until || !lost().ok()) break;
    futex_wait(page().bell, bell, std::min(until - now, kBeat));
  }
  waiters.fetch_sub(1, std::memory_order_seq_cst);
  deliver();  // records that arrived while the engine saw a waiter
  return over;
}

Status ClientLink::submit(const ipc::Submission& record) {
  const std::vector<std::byte> bytes = ipc::bytes_of(record);
  const std::lock_guard<std::mutex> held(submitting_);
  while (!submissions_->write(bytes)) {
    if (submissions_->broken()) suspect("broke the submission ring");
    if (Status why = lost(); !why.ok()) return why;
    ::usleep(static_cast<useconds_t>(kRoom / kMicro));
  }
  if (ipc::RingWriter::take_sleeper(page().engine_asleep)) {
    (void)tell({ipc::ControlType::kLook, 0, {}});
  }
  return {};
}

Status ClientLink::tell(const ipc::Control& message, std::span<const int> descriptors) {
  if (const std::string why = too_long(message); !why.empty()) {
    return Status(Code::kResourceExhausted, why);
  }
  const Status sent = socket_.send(ipc::bytes_of(message), descriptors, kSendPatience);
  if (!sent.ok()) suspect(sent.code() == Code::kUnavailable ? "does not take messages" : "");
  return {};
}

void ClientLink::suspect(const std::string& how) {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (end_.how.empty()) end_.how = how;
    if (!how.empty()) end_.may_run = true;  // otherwise it has closed its end
  }
  socket_.shutdown();
}

void ClientLink::note_that_it_may_run() {
  const std::lock_guard<std::mutex> held(mutex_);
  end_.may_run = true;
}

bool ClientLink::engine_may_run() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return end_.may_run;
}

std::string ClientLink::suspicion() const {
  const std::lock_guard<std::mutex> held(mutex_);
  if (!end_.how.empty()) return end_.how;
  if (!drain_limit_) return "ended; its log says why";
  return "ended: it is being replaced, and its clients had " + seconds_text(*drain_limit_) +
         " to leave";
}

bool ClientLink::draining() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return drain_limit_.has_value();
}

// Leaves an engine that is being replaced as soon as it has none of our groups and calls.
bool ClientLink::leave() {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (!drain_limit_ || !listeners_.empty() || !creations_.empty() || !calls_.empty()) {
      return false;
    }
    end_.why = lost_status(engine_pid_, "is being replaced");
  }
  log(LogLevel::kInfo, "%s: this process has left it", lost().message().c_str());
  (void)tell({ipc::ControlType::kBye, 0, {}});
  return true;
}

void ClientLink::ask(ipc::Control message, Answered answered, std::span<const int> descriptors) {
  Status why;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    why = end_.why;
    if (why.ok()) {
      message.call = next_call_++;
      calls_[message.call] = std::move(answered);
    }
  }
  if (!why.ok()) return answered(why);
  if (const Status told = tell(message, descriptors); !told.ok()) {
    on_message(control_of(ipc::ControlType::kRefused, message.call, ipc::Verdict::of(told)));
  }
}

Result<ipc::Control> ClientLink::ask(ipc::Control message, Nanos patience,
                                     std::span<const int> descriptors) {
  struct Answer {
    std::mutex mutex;
    std::condition_variable there;
    std::optional<Result<ipc::Control>> what;
  };
  auto answer = std::make_shared<Answer>();
  const Answered answered = [answer](const Result<ipc::Control>& what) {
    const std::lock_guard<std::mutex> held(answer->mutex);
    answer->what = what;
    answer->there.notify_one();
  };
  ask(std::move(message), answered, descriptors);
  const Nanos until = monotonic_now() + patience;
  std::unique_lock<std::mutex> held(answer->mutex);
  while (!answer->what && monotonic_now() < until) {
    if (!on_own_thread()) {
      answer->there.wait_for(held, std::chrono::nanoseconds(until - monotonic_now()));
      continue;
    }
    // No other thread reads the reply. A thread that posts in a callback holds its group's lock:
    // the loss of the link is reported once that is released.
    held.unlock();
    pollfd ready{socket_.fd(), POLLIN, 0};
    (void)::poll(&ready, 1, 1);
    if (!hand_on_messages()) return lost_status(engine_pid_, suspicion());
    held.lock();
  }
  if (answer->what) return *answer->what;
  return Status(Code::kTimeout,
                "the engine of this host has not answered for " + seconds_text(patience));
}

Result<uint16_t> ClientLink::offer(const Segment& segment) {
  ipc::Arena arena{0, segment.size()};
  const int file = segment.fd();
  auto answer = ask(control_of(ipc::ControlType::kArenaOffer, 0, arena), kSendPatience,
                    std::span<const int>(&file, 1));
  if (!answer.ok()) return answer.status();
  ipc::Verdict refused;
  if (answer->type == ipc::ControlType::kRefused && read(*answer, refused)) {
    return Status(refused.code, "engine of this host: " + refused.text);
  }
  if (!read(*answer, arena)) {
    return Status(Code::kInternal, "the engine's answer to ArenaOffer cannot be read");
  }
  return arena.space;
}

Result<ipc::Memory> ClientLink::offer(const ipc::MemoryOffer& memory, int descriptor) {
  const std::span<const int> files(&descriptor, descriptor < 0 ? 0 : 1);
  auto answer = ask(control_of(0, memory), kSendPatience, files);
  if (!answer.ok()) return answer.status();
  ipc::Verdict refused;
  if (answer->type == ipc::ControlType::kRefused && read(*answer, refused)) {
    return Status(refused.code, "engine of this host: " + refused.text);
  }
  ipc::Memory found;
  if (answer->type != ipc::ControlType::kMemory || !read(*answer, found)) {
    return Status(Code::kInternal, "the engine's answer to MemoryOffer cannot be read");
  }
  return found;
}

Result<std::optional<ipc::GroupMade>> ClientLink::make_group(const GroupSpec& spec,
                                                             KeyValueStore& store) {
  ipc::GroupAsk asked{spec.name, spec.rank,     spec.size, spec.timeout, non_defaults(spec.config),
                      "",        spec.fallback, true};
  if (spec.config.security != "off") {
    // The engine's MACs cover the place of values, like those of ranks without an engine.
    Result<std::string> scope = store.scope();
    if (!scope.ok()) return scope.status();
    asked.scope = std::move(scope).value();
  }
  auto creation = std::make_shared<ClientCreation>();
  uint64_t call = 0;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (drain_limit_) return std::optional<ipc::GroupMade>();
    if (!end_.why.ok()) return end_.why;
    call = next_call_++;
    creations_[call] = creation;
  }
  const auto give_up = [&](Status why) {
    const std::lock_guard<std::mutex> held(mutex_);
    creations_.erase(call);
    return why;
  };
  if (Status told = tell(control_of(call, asked)); !told.ok()) return give_up(told);
  const Nanos deadline = later(monotonic_now() + 10 * kSecond, spec.timeout);
  for (bool told = false; monotonic_now() < deadline;) {
    auto message = creation->take(kBeat);
    if (!lost().ok()) return give_up(lost());
    if (!message) {
      if (!told && spec.interrupted && spec.interrupted()) {
        (void)tell({ipc::ControlType::kInterrupt, call, {}});
        told = true;
      }
      continue;
    }
    ipc::GroupMade made;
    ipc::Verdict failed;
    if (message->type == ipc::ControlType::kGroupMade && read(*message, made)) {
      const std::lock_guard<std::mutex> held(mutex_);
      creations_.erase(call);
      listeners_[made.handle] = {};  // the group exists before it has a listener
      return std::optional<ipc::GroupMade>(made);
    }
    const bool refused = message->type == ipc::ControlType::kRefused;
    if ((refused || message->type == ipc::ControlType::kGroupFailed) && read(*message, failed)) {
      if (!refused || failed.code != Code::kUnavailable) return give_up(failed.status());
      (void)give_up({});
      return std::optional<ipc::GroupMade>();
    }
    const auto answer = answer_of(*message, store);
    if (!answer) return give_up(lost_status(engine_pid_, "sent a request that cannot be read"));
    Status sent = tell(control_of(message->call, *answer));
    if (sent.ok()) sent = lost();
    if (!sent.ok()) return give_up(sent);
  }
  return give_up(Status(Code::kTimeout, "creating group '" + spec.name +
                                            "': the engine of this host has not answered"));
}

void ClientLink::listen(uint32_t handle, const std::shared_ptr<ClientListener>& listener) {
  const Status why = [&] {
    const std::lock_guard<std::mutex> held(mutex_);
    listeners_[handle] = listener;
    return end_.why;
  }();
  // The link may have ended since the group was made, when there was no listener.
  if (!why.ok()) listener->on_lost(why);
}

void ClientLink::forget(uint32_t handle) {
  const std::lock_guard<std::mutex> held(mutex_);
  listeners_.erase(handle);
}

Status ClientLink::lost() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return end_.why;
}

void ClientLink::fail(const Status& why) {
  std::map<uint64_t, Answered> calls;
  // A closing thread gets the error as its reply and leaves.
  std::vector<std::shared_ptr<ClientListener>> listeners;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (!end_.why.ok()) return;
    end_.why = why;
    calls.swap(calls_);
    for (const auto& [handle, weak] : listeners_) {
      if (auto listener = weak.lock()) listeners.push_back(std::move(listener));
    }
    for (const auto& [call, creation] : creations_) creation->lose();
  }
  if (!ending_) log(LogLevel::kWarn, "%s", why.message().c_str());
  for (const auto& [call, answered] : calls) answered(why);
  // After the replies: a thread that posts, and waits for a reply, holds its group's lock.
  for (const auto& listener : listeners) listener->on_lost(why);
  ring(page().bell);
}

}  // namespace mcast
