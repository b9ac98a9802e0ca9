// One question at a time: the creation's thread asks and waits. An answer that comes when nobody
// waits is passed over, so a client cannot answer ahead.
#include "service/relay_store.h"

#include <chrono>

namespace mcast::service {
namespace {

constexpr Nanos kGrace = 10 * kSecond;  // beyond the store's own limit
constexpr Nanos kSetPatience = 60 * kSecond;

}  // namespace

Result<ipc::StoreAnswer> RelayStore::ask(const ipc::Control& question, Nanos patience) {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    answer_.reset();
  }
  tell_(question);
  std::unique_lock<std::mutex> held(mutex_);
  const bool there = there_.wait_for(held, std::chrono::nanoseconds(patience),
                                     [this] { return gone_ || answer_.has_value(); });
  if (gone_) return Status(Code::kClosed, "the client of the engine is gone");
  if (!there) {
    return Status(Code::kTimeout,
                  "the client's store has not answered for " + seconds_text(patience));
  }
  return *answer_;
}

Status RelayStore::set(const std::string& key, const std::string& value) {
  const auto answer = ask(control_of(call_, ipc::StoreSet{key, value}), kSetPatience);
  return answer.ok() ? answer->verdict.status() : answer.status();
}

Result<std::vector<std::string>> RelayStore::multi_get(const std::vector<std::string>& keys,
                                                       Nanos timeout) {
  const auto answer = ask(control_of(call_, ipc::StoreGet{timeout, keys}), timeout + kGrace);
  if (!answer.ok()) return answer.status();
  if (Status status = answer->verdict.status(); !status.ok()) return status;
  if (answer->values.size() != keys.size()) {
    return Status(Code::kInternal,
                  "the client's store has answered other keys than were asked for");
  }
  return answer->values;
}

void RelayStore::answered(ipc::StoreAnswer answer) {
  const std::lock_guard<std::mutex> held(mutex_);
  answer_ = std::move(answer);
  there_.notify_one();
}

void RelayStore::give_up() {
  const std::lock_guard<std::mutex> held(mutex_);
  gone_ = true;
  there_.notify_one();
}

}  // namespace mcast::service
