// Resolves one name at a time, in the order of the requests. A name that is requested again before
// its result was taken is not resolved twice.
#include "aggregation/member/name_lookup.h"

#include <utility>

#include "base/signals_blocked.h"

namespace mcast {
namespace {

bool is_number(const std::string& host) { return IpAddress::parse(host).has_value(); }

}  // namespace

NameLookup::NameLookup(Resolve resolve, std::function<void()> known)
    : resolve_(std::move(resolve)), known_(std::move(known)) {}

void NameLookup::start() {
  if (thread_.joinable()) return;
  thread_ = named_thread("mcast-names", [this] { loop(); });
}

void NameLookup::stop() {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    stopping_ = true;
    asked_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<NameLookup::Addresses> NameLookup::take(const NetAddress& address) {
  if (is_number(address.host)) return std::make_unique<Addresses>(resolve_(address));
  const std::lock_guard<std::mutex> held(mutex_);
  const auto [at, fresh] = answers_.try_emplace(address);
  if (fresh) {
    queue_.push_back(address);
    asked_.notify_all();
  }
  std::unique_ptr<Addresses> answer = std::move(at->second);
  if (answer) answers_.erase(at);
  return answer;
}

void NameLookup::loop() {
  std::unique_lock<std::mutex> held(mutex_);
  while (true) {
    asked_.wait(held, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const NetAddress address = std::move(queue_.front());
    queue_.pop_front();
    held.unlock();
    auto answer = std::make_unique<Addresses>(resolve_(address));
    held.lock();
    answers_[address] = std::move(answer);
    held.unlock();
    known_();
    held.lock();
  }
}

}  // namespace mcast
