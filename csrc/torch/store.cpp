// multi_get() waits for all keys with one call and fetches them with one call if the store can
// (TCPStore), so that creating a group costs a constant number of round trips per rank. Stores do
// not check for signals while they wait, and a late rank may take half an hour, so the wait is cut
// into slices.
#include "store.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "base/host.h"
#include "base/units.h"
#include "runtime/rendezvous.h"
#include "work.h"

namespace mcast::pg {
namespace {

using StoreClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStoreSlice(1000), kStorePause(100);

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
      // Only the elapsed time distinguishes the end of a wait from a broken store.
      if (StoreClock::now() - now < slice) throw;
    }
    check_signals();
  }
}

namespace {

// PrefixStore exposes its prefix to derived classes only.
struct PrefixOf : c10d::PrefixStore {
  static const std::string& get(const c10d::PrefixStore& store) {
    return store.*&PrefixOf::prefix_;
  }
};

// "outer/inner/": the prefix of `store`'s keys in the innermost store.
std::string prefixes_of(const c10::intrusive_ptr<c10d::Store>& store) {
  std::string all;
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  while (prefixed != nullptr) {
    all.insert(0, PrefixOf::get(*prefixed) + "/");
    prefixed = dynamic_cast<c10d::PrefixStore*>(prefixed->getUnderlyingStore().get());
  }
  return all;
}

// The store below all prefixes, which all groups of a job share.
c10::intrusive_ptr<c10d::Store> innermost(c10d::Store& store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(&store)) {
    return prefixed->getUnderlyingNonPrefixStore();
  }
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(&store);
}

// The same, of a kind; null if it is of another kind.
template <typename Kind>
c10::intrusive_ptr<Kind> store_of_kind(c10d::Store& store) {
  const auto at = innermost(store);
  auto* const kind = dynamic_cast<Kind*>(at.get());
  if (kind == nullptr) return {};
  return c10::intrusive_ptr<Kind>::unsafe_reclaim_from_nonowning(kind);
}

}  // namespace

std::string job_name_of(c10d::Store& store) {
  if (const std::string named = job_salt(); !named.empty()) return named;
  if (const auto tcp = store_of_kind<c10d::TCPStore>(store)) {
    return tcp->getHost() + ":" + std::to_string(tcp->getPort());
  }
  if (const auto file = store_of_kind<c10d::FileStore>(store)) return "file " + file->getPath();
  return "";
}

std::string StoreAdapter::host() const {
  const auto tcp = store_of_kind<c10d::TCPStore>(*store_);
  return tcp ? tcp->getHost() : "";
}

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank,
                           std::vector<uint64_t> members, std::function<bool()> interrupted)
    : store_(store),
      above_(prefixes_of(store_)),
      making_(std::move(store), static_cast<size_t>(rank), std::move(members)),
      interrupted_(std::move(interrupted)) {}

StoreAdapter::~StoreAdapter() { making_.end(); }

// Ranks whose keys are missing, the first ones.
std::string StoreAdapter::conflict(const std::vector<std::string>& keys) {
  constexpr size_t kMostAsked = 8;
  std::vector<size_t> missing;
  for (const std::string& key : keys) {
    if (missing.size() == kMostAsked) break;
    if (store_->check({prefix() + key})) continue;
    size_t rank = kConcluder;  // of "<round>/all"
    (void)read_number(std::string_view(key).substr(key.rfind('/') + 1), rank);
    missing.push_back(rank);
  }
  return making_.conflict(missing);
}

Result<std::string> StoreAdapter::scope() {
  try {
    return above_ + making_.prefix();
  } catch (const std::exception& error) {
    return Status(
        Code::kUnavailable,
        std::string("the rendezvous store gave no number for the group: ") + error.what());
  }
}

Result<std::string> StoreAdapter::claim(const std::string& key, const std::string& owner) {
  try {
    const auto has = innermost(*store_)->compareSet("mcast/" + key, {}, bytes_of_text(owner));
    return std::string(has.begin(), has.end());
  } catch (const std::exception& error) {
    return Status(Code::kUnavailable, error.what());
  }
}

Status StoreAdapter::set(const std::string& key, const std::string& value) {
  try {
    store_->set(prefix() + key, bytes_of_text(value));
    return {};
  } catch (const std::exception& error) {
    making_.forget();
    return Status(Code::kUnavailable,
                  "the rendezvous store refused key '" + key + "': " + error.what());
  }
}

Result<std::vector<std::string>> StoreAdapter::multi_get(const std::vector<std::string>& keys,
                                                         Nanos timeout) {
  if (keys.empty()) return std::vector<std::string>();
  if (!making_.joined()) {
    if (Result<std::string> own = scope(); !own.ok()) return own.status();
  }
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(prefix() + key);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(std::min(timeout, kNever / 4));
  std::vector<std::string> values;
  values.reserve(keys.size());
  try {
    // The store returns immediately when the last key is set, but torch logs each such wait that
    // times out, so do not wait in short steps.
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
      // Only the elapsed time distinguishes the end of a slice from a broken store.
      if (Clock::now() - start < slice || Clock::now() >= end) throw;
    }
    auto look = Clock::now();
    while (!there) {
      if (interrupted_ && interrupted_()) return Status(Code::kAborted, "interrupted");
      there = store_->check(names);
      if (there) break;
      if (Clock::now() >= look) {
        if (std::string why = conflict(keys); !why.empty()) return Status(Code::kMismatch, why);
        look = Clock::now() + kStoreSlice;
      }
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
  return values;
}

// Names the missing keys, since they identify the late ranks; the store's own message only says
// that some are missing.
Status StoreAdapter::missing(const std::vector<std::string>& keys, const std::string& cause,
                             bool late) {
  constexpr size_t kShown = 8;
  std::string list;
  size_t count = 0;
  bool works = false;
  try {
    for (const auto& key : keys) {
      if (store_->check({prefix() + key})) continue;
      if (++count <= kShown) list += (list.empty() ? "" : ", ") + key;
    }
    works = true;
  } catch (const std::exception&) {
    count = 0;
  }
  // The last of them was set after the limit and before this check: a caller with time left asks
  // again.
  if (works && late && count == 0) {
    return Status(Code::kTimeout, "rendezvous: the last of " + std::to_string(keys.size()) +
                                      " keys came after the time limit");
  }
  if (count == 0) {
    making_.forget();  // make no more calls of a store that does not work
    return Status(Code::kUnavailable, "the rendezvous store failed: " + cause);
  }
  if (count > kShown) list += ", ...";
  return Status(Code::kTimeout, "rendezvous: " + std::to_string(count) + " of " +
                                    std::to_string(keys.size()) + " keys missing (" + list + ")");
}

}  // namespace mcast::pg
