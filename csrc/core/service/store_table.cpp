// As c10d's stores: a missing key counts as 0 for add(), and may be set by compare_set() where
// nothing is expected; wait() and get() are for all keys at once. A client that waits has a place
// in its store's list, which is looked through when a key appears. What a store holds is counted
// with what a map or a list takes for each piece: many small keys are no way around the limit.
#include "service/store_table.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/units.h"

namespace mcast::service {
namespace {

using wire::StoreOp;
using wire::StoreRecord;

constexpr size_t kShownKey = 64;  // bytes of a key in an error

size_t cost(const std::string& key, const std::string& value) {
  return StoreTable::kEntryBytes + key.size() + value.size();
}

// Whole numbers with a sign, as add() stores them.
bool read_signed(const std::string& text, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

std::string full() {
  return "the engine's stores hold " + std::to_string(StoreTable::kMostBytes >> 20) +
         " MiB already";
}

// How many parts records of this kind have: from, to, and a multiple of.
bool shape(const StoreRecord& r) {
  const size_t n = r.parts.size();
  switch (r.op) {
    case StoreOp::kOpen:
      return n == 4;
    case StoreOp::kSet:
    case StoreOp::kAdd:
    case StoreOp::kAppend:
      return n == 2;
    case StoreOp::kMultiSet:
      return n % 2 == 0;
    case StoreOp::kCompareSet:
      return n == 3;
    case StoreOp::kDelete:
      return n == 1;
    case StoreOp::kCheck:
      return true;
    case StoreOp::kCount:
    case StoreOp::kList:
      return n == 0;
    case StoreOp::kWait:
    case StoreOp::kGet:
      return n >= 1;
    default:
      return false;
  }
}

}  // namespace

bool StoreTable::waits(Client client) const {
  const auto it = members_.find(client);
  return it != members_.end() && it->second.waits;
}

void StoreTable::say(Client client, const StoreRecord& record) {
  if (wire::fits(record)) return answer_(client, record);
  fail(client, "the answer is longer than a store's record may be");
}

bool StoreTable::open(Client client, const Parts& parts) {
  const std::string& name = parts[2];
  if (stores_.count(name) == 0 && stores_.size() >= kMostStores) {
    fail(client, "the engine keeps " + std::to_string(kMostStores) + " stores already");
    return true;
  }
  Store& store = stores_[name];
  store.clients++;
  members_[client] = {name};
  done(client);
  return true;
}

bool StoreTable::on_record(Client client, const StoreRecord& record, Nanos now) {
  if (!shape(record) || waits(client)) return false;
  const auto it = members_.find(client);
  if ((record.op == StoreOp::kOpen) != (it == members_.end())) return false;
  if (record.op == StoreOp::kOpen) return open(client, record.parts);
  Store& store = stores_[it->second.store];
  switch (record.op) {
    case StoreOp::kDelete: {
      const auto at = store.values.find(record.parts[0]);
      const bool there = at != store.values.end();
      if (there) {
        bytes_ -= cost(at->first, at->second);
        store.values.erase(at);
      }
      done(client, {there ? "1" : "0"});
      return true;
    }
    case StoreOp::kCheck:
      done(client, {all_there(store, record.parts) ? "1" : "0"});
      return true;
    case StoreOp::kCount:
      done(client, {std::to_string(store.values.size())});
      return true;
    case StoreOp::kList: {
      Parts keys;
      for (const auto& [key, value] : store.values) keys.push_back(key);
      done(client, std::move(keys));
      return true;
    }
    case StoreOp::kWait:
    case StoreOp::kGet:
      return wait(client, store, record.parts, record.op == StoreOp::kGet, now);
    default:
      return change(client, store, record);
  }
}

bool StoreTable::change(Client client, Store& store, const StoreRecord& record) {
  const Parts& parts = record.parts;
  Parts answer;
  const auto at = parts.empty() ? store.values.end() : store.values.find(parts[0]);
  const bool there = at != store.values.end();
  bool put_all = true;
  if (record.op == StoreOp::kAdd) {
    int64_t sum = 0, before = 0;
    if (!read_signed(parts[1], sum)) return false;
    if ((there && !read_signed(at->second, before)) || __builtin_add_overflow(before, sum, &sum)) {
      fail(client, "key '" + parts[0].substr(0, kShownKey) + "' holds no number of 64 bits");
      return true;
    }
    answer = {std::to_string(sum)};
    put_all = put(client, store, parts[0], answer[0]);
  } else if (record.op == StoreOp::kAppend) {
    put_all = put(client, store, parts[0], (there ? at->second : "") + parts[1]);
  } else if (record.op == StoreOp::kCompareSet) {
    const bool equal = there ? at->second == parts[1] : parts[1].empty();
    answer = {equal ? parts[2] : there ? at->second : parts[1]};
    put_all = !equal || put(client, store, parts[0], parts[2]);
  } else {
    for (size_t i = 0; put_all && i < parts.size(); i += 2) {
      put_all = put(client, store, parts[i], parts[i + 1]);
    }
  }
  if (put_all) done(client, std::move(answer));
  wake(store);
  return true;
}

bool StoreTable::put(Client client, Store& store, const std::string& key, std::string value) {
  const auto at = store.values.find(key);
  const size_t before = at == store.values.end() ? 0 : cost(key, at->second);
  const size_t after = cost(key, value);
  if (bytes_ - before + after > kMostBytes) {
    fail(client, full());
    return false;
  }
  bytes_ += after - before;
  store.values[key] = std::move(value);
  return true;
}

bool StoreTable::all_there(const Store& store, const Parts& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return store.values.count(key) > 0; });
}

void StoreTable::give(const Store& store, const Waiter& waiter) {
  Parts values;
  for (const std::string& key : waiter.keys) {
    if (waiter.values) values.push_back(store.values.at(key));
  }
  done(waiter.client, std::move(values));
}

bool StoreTable::wait(Client client, Store& store, const Parts& parts, bool values, Nanos now) {
  uint64_t limit = 0;
  if (!read_number(parts[0], limit, uint64_t{1} << 40)) return false;
  Waiter waiter{client,
                {parts.begin() + 1, parts.end()},
                values,
                limit == 0 ? kNever : now + static_cast<Nanos>(limit) * kMilli,
                0};
  if (all_there(store, waiter.keys)) {
    give(store, waiter);
    return true;
  }
  for (const std::string& key : waiter.keys) waiter.cost += cost(key, "");
  if (bytes_ + waiter.cost > kMostBytes) {
    fail(client, full());
    return true;
  }
  bytes_ += waiter.cost;
  members_[client].waits = true;
  store.waiters.push_back(std::move(waiter));
  return true;
}

void StoreTable::let_go(const Waiter& waiter) {
  bytes_ -= waiter.cost;
  members_[waiter.client].waits = false;
}

void StoreTable::wake(Store& store) {
  store.waiters.remove_if([&](const Waiter& waiter) {
    if (!all_there(store, waiter.keys)) return false;
    let_go(waiter);
    give(store, waiter);
    return true;
  });
}

void StoreTable::on_end(Client client) {
  const auto it = members_.find(client);
  if (it == members_.end()) return;
  Store& store = stores_[it->second.store];
  store.waiters.remove_if([&](const Waiter& waiter) {
    if (waiter.client != client) return false;
    let_go(waiter);
    return true;
  });
  if (--store.clients == 0) {
    for (const auto& [key, value] : store.values) bytes_ -= cost(key, value);
    stores_.erase(it->second.store);
  }
  members_.erase(it);
}

void StoreTable::advance(Nanos now) {
  for (auto& [name, store] : stores_) {
    const auto& values = store.values;
    store.waiters.remove_if([&](const Waiter& waiter) {
      if (now < waiter.until) return false;
      Parts missing;
      for (const std::string& key : waiter.keys) {
        if (values.count(key) == 0) missing.push_back(key);
      }
      let_go(waiter);
      answer_(waiter.client, {StoreOp::kLate, std::move(missing)});
      return true;
    });
  }
}

Nanos StoreTable::deadline() const {
  Nanos next = kNever;
  for (const auto& [name, store] : stores_) {
    for (const Waiter& waiter : store.waiters) next = std::min(next, waiter.until);
  }
  return next;
}

}  // namespace mcast::service
