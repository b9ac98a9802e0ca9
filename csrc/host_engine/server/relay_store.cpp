// One request at a time: the creation's thread sends it and waits. A reply that comes while no
// request is pending is ignored, so a client cannot reply in advance.
//
// A reply holds the values of the first keys only if all together exceed a message. The first
// request is for all keys, so that they are waited for together, and missing keys are named
// immediately; the further requests are for few keys, which are there by then.
#include "host_engine/server/relay_store.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <span>

#include "base/clock.h"

namespace mcast::service {
namespace {

constexpr Nanos kGrace = 10 * kSecond;  // added to the store's own limit
constexpr Nanos kSetPatience = 60 * kSecond;
constexpr size_t kFurther = 64;              // keys per request after the first
constexpr Nanos kFurtherPatience = kSecond;  // minimum: the keys are there

}  // namespace

Result<ipc::StoreAnswer> RelayStore::ask(const ipc::Control& question, Nanos patience) {
  if (const std::string why = too_long(question); !why.empty()) {
    return Status(Code::kResourceExhausted,
                  "the request to the client's store cannot be sent: " + why);
  }
  {
    const std::lock_guard<std::mutex> held(mutex_);
    answer_.reset();
  }
  tell_(question);
  std::unique_lock<std::mutex> held(mutex_);
  const bool there = there_.wait_for(held, std::chrono::nanoseconds(std::min(patience, kNever / 4)),
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

Result<std::string> RelayStore::claim(const std::string& key, const std::string& owner) {
  if (!claims_) return owner;
  auto answer = ask(control_of(call_, ipc::StoreClaim{key, owner}), kSetPatience);
  if (!answer.ok()) return answer.status();
  if (Status status = answer->verdict.status(); !status.ok()) return status;
  if (answer->values.size() != 1) {
    return Status(Code::kInternal,
                  "the client's store has returned values for other keys than were requested");
  }
  return std::move(answer->values.front());
}

Result<std::vector<std::string>> RelayStore::multi_get(const std::vector<std::string>& keys,
                                                       Nanos timeout) {
  const Nanos deadline = later(monotonic_now(), timeout);
  std::vector<std::string> values;
  while (values.size() < keys.size()) {
    const bool first = values.empty();
    const Nanos left = first ? timeout : std::max(kFurtherPatience, deadline - monotonic_now());
    const auto rest = std::span(keys).subspan(values.size());
    ipc::StoreGet get{left, {}};
    // (A value that does not fit exceeds a message by itself, and ask() reports that.)
    const size_t room = std::max<size_t>(1, fitting(control_of(call_, get), rest));
    const size_t count = std::min({rest.size(), room, first ? room : kFurther});
    get.keys.assign(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(count));
    auto answer = ask(control_of(call_, get), later(kGrace, left));
    if (!answer.ok()) return answer.status();
    if (Status status = answer->verdict.status(); !status.ok()) return status;
    if (answer->values.empty() || answer->values.size() > count) {
      return Status(Code::kInternal,
                    "the client's store has returned values for other keys than were requested");
    }
    std::move(answer->values.begin(), answer->values.end(), std::back_inserter(values));
  }
  return values;
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
