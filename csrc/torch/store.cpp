// Keys are "mcast/<incarnation>/<key>" below whatever prefix c10d has given the group. multi_get()
// waits for all keys with one call and fetches them with one call where the store can (TCPStore),
// so that making a group costs a constant number of round trips per rank.
#include "store.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace mcast::pg {
namespace {

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

StoreAdapter::StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)) {
  const int64_t incarnation = store_->add("mcast/incarnation/" + std::to_string(rank), 1);
  prefix_ = "mcast/" + std::to_string(incarnation) + "/";
}

Status StoreAdapter::set(const std::string& key, const std::string& value) {
  try {
    store_->set(prefix_ + key, to_bytes(value));
    return {};
  } catch (const std::exception& error) {
    return Status(Code::kUnavailable,
                  "the rendezvous store refused key '" + key + "': " + error.what());
  }
}

Result<std::vector<std::string>> StoreAdapter::multi_get(const std::vector<std::string>& keys,
                                                         Nanos timeout) {
  if (keys.empty()) return std::vector<std::string>();
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(prefix_ + key);
  // At least 1 ms: stores take 0 as "no limit".
  const std::chrono::milliseconds limit(timeout == kNever ? int64_t{86400000}
                                                          : std::max<int64_t>(1, timeout / kMilli));
  std::vector<std::string> values;
  values.reserve(keys.size());
  try {
    store_->wait(names, limit);
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
    return missing(keys, error.what());
  }
  return values;
}

// Says which keys never came, for they name the late ranks; the store's own message only says that
// some did not.
Status StoreAdapter::missing(const std::vector<std::string>& keys, const std::string& cause) {
  constexpr size_t kShown = 8;
  std::string list;
  size_t count = 0;
  try {
    for (const auto& key : keys) {
      if (store_->check({prefix_ + key})) continue;
      if (++count <= kShown) list += (list.empty() ? "" : ", ") + key;
    }
  } catch (const std::exception&) {
    return Status(Code::kUnavailable, "the rendezvous store failed: " + cause);
  }
  if (count == 0) return Status(Code::kUnavailable, "the rendezvous store failed: " + cause);
  if (count > kShown) list += ", ...";
  return Status(Code::kTimeout, "rendezvous: " + std::to_string(count) + " of " +
                                    std::to_string(keys.size()) + " keys missing (" + list + ")");
}

}  // namespace mcast::pg
