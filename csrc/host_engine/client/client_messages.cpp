// A message becomes a record, as an operation does (client_group.cpp): short ones are copied before
// it is written. For long ones it says that nothing can be read yet, and the posting thread then
// copies them piece by piece. Data that the engine has received is copied by the thread that reads
// its completion. Numbers wrap around after 2^32; one that is still in flight is skipped.
#include "host_engine/client/client_messages.h"

#include <algorithm>
#include <utility>

namespace mcast {

Status ClientMessages::post(MessagePost post) {
  auto staging = ClientStaging::make(post.memory, post.receives, link_->arenas(), params_.access);
  if (!staging.ok()) return staging.status().with_context(text(post));
  (*staging)->count(*params_.counters);
  auto flight = std::make_shared<Flight>();
  flight->staging = std::move(staging).value();
  ipc::MessageRecord record;
  record.group = params_.handle;
  record.receives = post.receives;
  record.peer = post.peer;
  record.tag = post.tag;
  record.timeout = post.timeout;
  record.memory = flight->staging->runs()[0];
  record.staged = !ClientFeed::begin(*flight->staging);
  flight->post = std::move(post);
  {
    // Before it is written: it may end at once.
    const std::lock_guard<std::mutex> held(mutex_);
    if (!lost_.ok()) return lost_.with_context(text(flight->post));
    while (flights_.count(next_) != 0) next_++;
    record.number = next_++;
    if (!record.receives) sends_++;
    flights_[record.number] = std::move(flight);
  }
  (void)link_->submit(record);  // if the link is lost, all flights are notified
  if (!record.staged) return {};
  // Not earlier: another thread that feeds would report progress of a message that the engine does
  // not know yet.
  const std::lock_guard<std::mutex> held(mutex_);
  if (flights_.count(record.number) != 0) to_feed_.push_back(record.number);
  return {};
}

void ClientMessages::feed() {
  std::deque<uint32_t> waiting;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    waiting = to_feed_;
  }
  for (const uint32_t number : waiting) {
    std::shared_ptr<Flight> flight;
    {
      const std::lock_guard<std::mutex> held(mutex_);
      const auto it = flights_.find(number);
      if (it == flights_.end()) continue;
      flight = it->second;
    }
    const auto tell = [&](uint32_t, uint64_t bytes) {
      return link_
          ->submit(ipc::ReadyRecord{LaneId::kReduce, params_.handle, number, 0, bytes, true})
          .ok();
    };
    if (!flight->feed.next(flight->staging, tell)) continue;
    const std::lock_guard<std::mutex> held(mutex_);
    std::erase(to_feed_, number);
  }
}

void ClientMessages::on_done(const ipc::MessageDoneRecord& record) {
  std::shared_ptr<Flight> flight;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto it = flights_.find(record.number);
    if (it == flights_.end()) return;
    flight = std::move(it->second);
    flights_.erase(it);
    if (!flight->post.receives) sends_--;
    std::erase(to_feed_, record.number);
  }
  if (record.held) flight->staging->keep_outputs();
  const MessagePost& post = flight->post;
  if (record.code == 0 && post.source && record.source < params_.size) {
    post.source->store(record.source, std::memory_order_release);
  }
  end(*flight, record.code == 0 ? Status() : Status(static_cast<Code>(record.code), record.text));
}

void ClientMessages::end_all(const Status& why, bool may_run) {
  std::map<uint32_t, std::shared_ptr<Flight>> all;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    lost_ = why;
    all.swap(flights_);
    sends_ = 0;
    to_feed_.clear();
  }
  for (const auto& [number, flight] : all) {
    if (!flight->staging->withdraw(may_run)) flight->staging->keep_outputs();
    end(*flight, why.with_context(text(flight->post)));
  }
}

// The memory is the caller's again.
void ClientMessages::end(Flight& flight, const Status& status) {
  flight.feed.end();
  if (status.ok()) flight.staging->copy_out();
  flight.staging.reset();
  const MessagePost post = std::move(flight.post);
  if (post.done) post.done(status);
}

ClientMessages::InFlight ClientMessages::in_flight() const {
  const std::lock_guard<std::mutex> held(mutex_);
  return {flights_.size(), sends_};
}

// The same text as the engine's.
std::string ClientMessages::text(const MessagePost& p) const {
  const std::string other = p.peer == kNoMember ? "any rank" : "rank " + std::to_string(p.peer);
  return std::string(p.receives ? "recv" : "send") + " of " + std::to_string(p.memory.length) +
         " bytes with tag " + std::to_string(p.tag) + (p.receives ? " from " : " to ") + other +
         " (group '" + params_.name + "', rank " + std::to_string(params_.self) + ")";
}

}  // namespace mcast
