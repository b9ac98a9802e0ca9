// Keys are "mcast/<incarnation>/<key>" below whatever prefix c10d has given the group. multi_get()
// waits for all keys with one call and fetches them with one call where the store can (TCPStore),
// so that making a group costs a constant number of round trips per rank. Stores do not look for
// signals while they wait, and a late rank may take half an hour, so the wait is cut into slices.
// Where some ranks never came (one failed before it got here), those that did mark the incarnation
// as given up, and everybody skips such numbers: else the next attempt on the same store would find
// the ranks out of step.
#include "store.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>

#include "engine/clock.h"
#include "work.h"

namespace mcast::pg {
namespace {

using StoreClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStoreSlice(1000), kStorePause(100);
constexpr const char* kGivenUp = "given_up";
// So that a store in which all numbers are given up is an error, and no loop.
constexpr int kMostGivenUp = 1000;

}  // namespace

bool appears(c10d::Store& store, const std::string& key, Nanos deadline) {
  for (;;) {
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) return store.check({key});
    const auto now = StoreClock::now();
    const auto slice = std::clamp(std::chrono::milliseconds(left / kMilli),
                                  std::chrono::milliseconds(1), kStoreSlice);
    try {
      store.wait({key}, slice);
      return true;
    } catch (const std::exception&) {
      // Only its passing tells the end of a wait from a store that is broken.
      if (StoreClock::now() - now < slice) throw;
    }
    check_signals();
  }
}

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank,
                           std::function<bool()> interrupted)
    : store_(std::move(store)),
      counter_("mcast/incarnation/" + std::to_string(rank)),
      interrupted_(std::move(interrupted)) {}

StoreAdapter::~StoreAdapter() {
  if (met_ || prefix_.empty()) return;
  try {
    store_->set(prefix_ + kGivenUp, bytes_of_text("1"));
  } catch (...) {
    // The store is gone, and the numbers with it.
  }
}

void StoreAdapter::choose_prefix() {
  if (!prefix_.empty()) return;
  std::string prefix;
  int tries = 0;
  do {
    if (tries++ == kMostGivenUp) {
      throw std::runtime_error(std::to_string(kMostGivenUp) + " numbers in a row were given up");
    }
    prefix = "mcast/" + std::to_string(store_->add(counter_, 1)) + "/";
  } while (store_->check({prefix + kGivenUp}));
  prefix_ = prefix;
}

Result<std::string> StoreAdapter::scope() {
  try {
    choose_prefix();
    return prefix_;
  } catch (const std::exception& error) {
    return Status(
        Code::kUnavailable,
        std::string("the rendezvous store gave no number for the group: ") + error.what());
  }
}

Status StoreAdapter::set(const std::string& key, const std::string& value) {
  try {
    choose_prefix();
    store_->set(prefix_ + key, bytes_of_text(value));
    return {};
  } catch (const std::exception& error) {
    prefix_.clear();
    return Status(Code::kUnavailable,
                  "the rendezvous store refused key '" + key + "': " + error.what());
  }
}

Result<std::vector<std::string>> StoreAdapter::multi_get(const std::vector<std::string>& keys,
                                                         Nanos timeout) {
  if (keys.empty()) return std::vector<std::string>();
  if (prefix_.empty()) {
    if (Result<std::string> own = scope(); !own.ok()) return own.status();
  }
  met_ = false;
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(prefix_ + key);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(std::min(timeout, kNever / 4));
  std::vector<std::string> values;
  values.reserve(keys.size());
  try {
    // The store tells at once when the last key comes, but torch logs each such wait that ends
    // without: once is enough.
    const auto start = Clock::now();
    // At least 1 ms: stores take 0 as "no limit".
    const auto slice = std::max(
        std::chrono::milliseconds(1),
        std::min(kStoreSlice, std::chrono::duration_cast<std::chrono::milliseconds>(end - start)));
    bool there = false;
    try {
      store_->wait(names, slice);
      there = true;
    } catch (const std::exception&) {
      // Only its passing tells the end of a slice from a store that is broken.
      if (Clock::now() - start < slice || Clock::now() >= end) throw;
    }
    while (!there) {
      if (interrupted_ && interrupted_()) return Status(Code::kAborted, "interrupted");
      there = store_->check(names);
      if (there) break;
      if (Clock::now() >= end) return missing(keys, "the limit has passed", true);
      std::this_thread::sleep_for(kStorePause);
    }
    if (store_->hasExtendedApi()) {
      for (const auto& value : store_->multiGet(names))
        values.emplace_back(value.begin(), value.end());
    } else {
      for (const auto& name : names) {
        const auto value = store_->get(name);
        values.emplace_back(value.begin(), value.end());
      }
    }
  } catch (const std::exception& error) {
    return missing(keys, error.what(), Clock::now() >= end);
  }
  met_ = true;
  return values;
}

// Says which keys never came, for they name the late ranks; the store's own message only says that
// some did not.
Status StoreAdapter::missing(const std::vector<std::string>& keys, const std::string& cause,
                             bool late) {
  constexpr size_t kShown = 8;
  std::string list;
  size_t count = 0;
  bool works = false;
  try {
    for (const auto& key : keys) {
      if (store_->check({prefix_ + key})) continue;
      if (++count <= kShown) list += (list.empty() ? "" : ", ") + key;
    }
    works = true;
  } catch (const std::exception&) {
    count = 0;
  }
  // The last of them came after the limit and before this look: who has time left asks again.
  if (works && late && count == 0) {
    return Status(Code::kTimeout, "rendezvous: the last of " + std::to_string(keys.size()) +
                                      " keys came when the limit had passed");
  }
  if (count == 0) {
    prefix_.clear();  // no more calls of a store that does not work
    return Status(Code::kUnavailable, "the rendezvous store failed: " + cause);
  }
  if (count > kShown) list += ", ...";
  return Status(Code::kTimeout, "rendezvous: " + std::to_string(count) + " of " +
                                    std::to_string(keys.size()) + " keys missing (" + list + ")");
}

}  // namespace mcast::pg
