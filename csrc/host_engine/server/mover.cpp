// One loop: take a copy that is due, copy at most 256 KiB of it, handle the result. Inputs for
// which operations wait (pulls) and their outputs (pushes) alternate, so that neither blocks the
// other; within each, operations alternate.
//
// Lanes and the tenant's thread only take the lock, which is never held during a copy. An operation
// that ends during a call is finished after the call, so that its memory is not touched after it is
// returned. Only if the call hangs is it finished earlier; its end then says so if the call writes.
#include "host_engine/server/mover.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/start_thread.h"

namespace mcast::service {
namespace {

constexpr Nanos kOpenLimit = 5 * kSecond;
constexpr Nanos kLeastCallLimit = 500 * kMilli;  // of one call: lack of CPU is not a hang
constexpr auto kRetirePatience = std::chrono::seconds(1);

Status let_go() {
  return Status(Code::kClosed, "its engine has released the memory of this process");
}

std::string who(const Transfer& t) { return "rank " + std::to_string(t.what.self); }

}  // namespace

Result<std::shared_ptr<Mover>> Mover::start(const ipc::MemoryOffer& offer,
                                            ClientMemory::Client client, Fd file,
                                            std::shared_ptr<BouncePool> pool, Opened opened) {
  std::shared_ptr<Mover> mover(new Mover(client, std::move(pool)));
  auto sent = std::make_shared<Fd>(std::move(file));
  const Status started =
      start_thread(mover->thread_, "mcast-mover", [mover, offer, sent, opened = std::move(opened)] {
        mover->run(offer, std::move(*sent), opened);
      });
  if (!started.ok()) return started;
  return mover;
}

Status Mover::usable() const {
  const std::lock_guard<std::mutex> held(mutex_);
  if (!method_) return Status(Code::kInvalidArgument, "memory that it has not offered");
  if (!hangs_) return {};
  return Status(Code::kTimeout, "memory of process " + std::to_string(client_.pid) +
                                    " does not answer (swap, FUSE, userfaultfd)");
}

void Mover::begin(Call call) {
  call.since = monotonic_now();
  call_ = std::move(call);
}

void Mover::end_call() {
  call_.reset();
  if (std::exchange(hangs_, false)) pool_->account().add_hung(-1);
}

std::unique_ptr<ClientMemory> Mover::open(const ipc::MemoryOffer& offer, Fd file,
                                          const Opened& opened) {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    Call looks;
    looks.limit = kOpenLimit;
    begin(std::move(looks));
  }
  auto memory = ClientMemory::open(offer, client_, std::move(file));
  {
    const std::lock_guard<std::mutex> held(mutex_);
    end_call();
    if (memory.ok()) method_ = (*memory)->method();
  }
  if (!memory.ok()) {
    opened(memory.status());
    return nullptr;
  }
  opened(ipc::Memory{(*memory)->method()});
  return std::move(memory).value();
}

void Mover::run(const ipc::MemoryOffer& offer, Fd file, const Opened& opened) {
  const std::unique_ptr<ClientMemory> memory = open(offer, std::move(file), opened);
  std::vector<ClientMemory::Span> spans;
  std::unique_lock<std::mutex> held(mutex_);
  while (memory && !stopping_) {
    Call call;
    if (!take(call, spans)) {
      work_.wait(held);
      continue;
    }
    begin(call);
    held.unlock();
    const auto how = call.way == Transfer::kPull ? memory->pull(spans) : memory->push(spans);
    Later later;
    held.lock();
    moved(call, how, later);
    held.unlock();
    for (const auto& act : later) act();
    held.lock();
  }
  over_ = true;
  news_.notify_all();
}

bool Mover::take(Call& call, std::vector<ClientMemory::Span>& spans) {
  const auto other = last_ == Transfer::kPull ? Transfer::kPush : Transfer::kPull;
  for (const Transfer::Way way : {other, last_}) {
    auto& due = due_[way];
    while (!due.empty()) {
      auto first = std::move(due.front());
      due.pop_front();
      if (!first->due(way)) {
        first->queued[way] = false;
        continue;
      }
      call.way = last_ = way;
      call.batch = first->next(way, spans);
      call.limit = std::max(first->what.timeout / 2, kLeastCallLimit);
      due.push_back(first);
      call.transfer = std::move(first);
      return true;
    }
  }
  return false;
}

void Mover::enqueue(const std::shared_ptr<Transfer>& transfer) {
  for (const Transfer::Way way : {Transfer::kPull, Transfer::kPush}) {
    if (transfer->due(way) && !std::exchange(transfer->queued[way], true)) {
      due_[way].push_back(transfer);
      work_.notify_one();
    }
  }
}

void Mover::moved(const Call& call, ClientMemory::Moved how, Later& later) {
  Transfer& t = *call.transfer;
  end_call();
  if (how == ClientMemory::Moved::kAll) {
    for (const CopyList::Copied& copied : call.batch) moved_[call.way] += copied.to - copied.from;
    t.advance(call.way, call.batch);
    if (call.way == Transfer::kPull && !t.ended) later.push_back(t.hooks.wake);
    enqueue(call.transfer);
  } else if (how == ClientMemory::Moved::kGone) {
    break_off(t,
              Status(Code::kPeerLost, who(t) + " is lost: its process " +
                                          std::to_string(client_.pid) + " has ended"),
              later);
  } else {
    break_off(t,
              Status(Code::kInvalidArgument,
                     who(t) + ": memory of " + t.what.name +
                         " went away while it was in flight: its pages are not mapped, or not "
                         "for " +
                         (call.way == Transfer::kPull ? "reading" : "writing")),
              later);
  }
  finish_if_over(call.transfer, later);
}

// Copies no more of it; its group gets the reason, which leads to its own end.
void Mover::break_off(Transfer& t, const Status& why, Later& later) {
  if (t.finished || (t.ended && !t.outcome.ok())) return;
  t.close(false);
  if (t.outcome.ok()) t.outcome = why;
  later.push_back([fault = t.hooks.fault, why] { fault(why); });
}

bool Mover::in_call(const Transfer& transfer) const {
  return call_ && call_->transfer.get() == &transfer;
}

void Mover::finish_if_over(const std::shared_ptr<Transfer>& transfer, Later& later) {
  Transfer& t = *transfer;
  const bool held = in_call(t);
  if (!t.ended || t.finished || (held && !hangs_)) return;
  if (t.outcome.ok() && t.due(Transfer::kPush)) return;
  t.finished = true;
  const bool writes = held && call_->way == Transfer::kPush;
  const Transfer::Hooks hooks = std::exchange(t.hooks, {});
  later.push_back(
      [self = shared_from_this(), transfer, finish = hooks.finish, status = t.outcome, writes] {
        finish(status, writes);
        self->told(transfer);
      });
  telling_.insert(transfer);
  live_.erase(transfer);
  news_.notify_all();
}

void Mover::told(const std::shared_ptr<Transfer>& transfer) {
  Later later;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    telling_.erase(transfer);
    news_.notify_all();
    for (Waiting& one : waiting_) {
      if (one.on.erase(transfer) > 0 && one.on.empty()) later.push_back(std::move(one.act));
    }
    std::erase_if(waiting_, [](const Waiting& one) { return one.on.empty(); });
  }
  for (const auto& act : later) act();
}

void Mover::after(uint32_t group, std::function<void()> act) {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    Waiting waiting;
    for (const auto& t : live_) {
      if (t->ended && t->what.group == group) waiting.on.insert(t);
    }
    for (const auto& t : telling_) {
      if (t->what.group == group) waiting.on.insert(t);
    }
    if (!waiting.on.empty()) {
      waiting.act = std::move(act);
      waiting_.push_back(std::move(waiting));
      return;
    }
  }
  act();
}

void Mover::submit(const std::shared_ptr<Transfer>& transfer) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (transfer->finished) return;
  live_.insert(transfer);
  enqueue(transfer);
}

void Mover::allow(const std::shared_ptr<Transfer>& transfer, uint32_t input, uint64_t bytes) {
  const std::lock_guard<std::mutex> held(mutex_);
  transfer->allow(input, bytes);
  enqueue(transfer);
}

void Mover::mark(const std::shared_ptr<Transfer>& transfer, uint32_t output, uint64_t bytes) {
  const std::lock_guard<std::mutex> held(mutex_);
  transfer->mark(output, bytes);
  enqueue(transfer);
}

void Mover::end(const std::shared_ptr<Transfer>& transfer, const Status& status) {
  Later later;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    Transfer& t = *transfer;
    t.ended = true;
    if (t.outcome.ok() || !status.ok()) t.outcome = status;
    if (t.outcome.ok() && stopping_) t.outcome = let_go();
    t.close(t.outcome.ok());
    enqueue(transfer);
    finish_if_over(transfer, later);
  }
  for (const auto& act : later) act();
}

void Mover::settle(uint32_t group, Nanos deadline) {
  std::unique_lock<std::mutex> held(mutex_);
  const auto of_group = [group](const auto& t) { return t->what.group == group; };
  const auto nothing = [&] {
    return stopping_ || (std::none_of(live_.begin(), live_.end(), of_group) &&
                         std::none_of(telling_.begin(), telling_.end(), of_group));
  };
  while (!nothing()) {
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) return;
    news_.wait_for(held, std::chrono::nanoseconds(std::min(left, kSecond)));
  }
}

void Mover::check(Nanos now) {
  Later later;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (!call_ || hangs_ || now - call_->since <= call_->limit) return;
    hangs_ = true;
    pool_->account().add_hung(1);
    std::string text = "memory of process " + std::to_string(client_.pid);
    if (call_->transfer) text = who(*call_->transfer) + ": memory of " + call_->transfer->what.name;
    const Status why(Code::kTimeout, text + " does not answer for " +
                                         seconds_text(now - call_->since) +
                                         " (swap, FUSE, userfaultfd)");
    log(LogLevel::kWarn, "client (process %d): %s", static_cast<int>(client_.pid),
        why.message().c_str());
    const auto all = live_;
    for (const auto& transfer : all) {
      break_off(*transfer, why, later);
      finish_if_over(transfer, later);
    }
  }
  for (const auto& act : later) act();
}

void Mover::retire() {
  Later later;
  bool over = false;
  {
    std::unique_lock<std::mutex> held(mutex_);
    news_.wait_for(held, kRetirePatience, [this] { return live_.empty() || hangs_; });
    stopping_ = true;
    work_.notify_all();
    news_.wait_for(held, hangs_ ? std::chrono::seconds(0) : kRetirePatience,
                   [this] { return over_; });
    over = over_;
    if (!over && !std::exchange(hangs_, true)) pool_->account().add_hung(1);
    const auto all = live_;
    for (const auto& transfer : all) {
      transfer->ended = true;
      if (transfer->outcome.ok()) transfer->outcome = let_go();
      transfer->close(false);
      finish_if_over(transfer, later);
    }
    for (auto& due : due_) due.clear();
  }
  for (const auto& act : later) act();
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

Mover::Report Mover::report() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return {method_, moved_[Transfer::kPull], moved_[Transfer::kPush], hangs_};
}

}  // namespace mcast::service
