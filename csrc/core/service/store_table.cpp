// As c10d's stores: a missing key counts as 0 for add(), and may be set by compare_set() where
// nothing is expected; wait() and get() are for all keys at once. A client that waits has a place
// in its store's list, which is looked through when a key appears.
#include "service/store_table.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace mcast::service {
namespace {

using wire::StoreOp;
using wire::StoreRecord;

size_t cost(const std::string& key, const std::string& value) { return key.size() + value.size(); }

// Whole numbers with a sign, as add() stores them.
bool read_signed(const std::string& text, int64_t& out) {
  const bool negative = !text.empty() && text[0] == '-';
  uint64_t size = 0;
  if (!read_number(text.substr(negative ? 1 : 0), size, uint64_t{1} << 62)) return false;
  out = negative ? -static_cast<int64_t>(size) : static_cast<int64_t>(size);
  return true;
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
  const auto it = store_of_.find(client);
  if (it == store_of_.end()) return false;
  const auto& waiters = stores_.at(it->second).waiters;
  return std::any_of(waiters.begin(), waiters.end(),
                     [&](const Waiter& w) { return w.client == client; });
}

bool StoreTable::open(Client client, const Parts& parts) {
  const std::string& name = parts[2];
  if (stores_.count(name) == 0 && stores_.size() >= kMostStores) {
    fail(client, "the engine keeps " + std::to_string(kMostStores) + " stores already");
    return true;
  }
  Store& store = stores_[name];
  store.clients++;
  store_of_[client] = name;
  done(client);
  return true;
}

bool StoreTable::on_record(Client client, const StoreRecord& record, Nanos now) {
  if (!shape(record) || waits(client)) return false;
  const auto it = store_of_.find(client);
  if ((record.op == StoreOp::kOpen) != (it == store_of_.end())) return false;
  if (record.op == StoreOp::kOpen) return open(client, record.parts);
  Store& store = stores_[it->second];
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
    if (there && !read_signed(at->second, before)) {
      fail(client, "key '" + parts[0] + "' holds no number");
      return true;
    }
    answer = {std::to_string(before + sum)};
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
    fail(client, "the engine's stores hold " + std::to_string(kMostBytes >> 20) + " MiB already");
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
  const StoreRecord record{StoreOp::kDone, std::move(values)};
  if (wire::bytes_of(record).empty())
    return fail(waiter.client, "the values are too long together");
  answer_(waiter.client, record);
}

bool StoreTable::wait(Client client, Store& store, const Parts& parts, bool values, Nanos now) {
  uint64_t limit = 0;
  if (!read_number(parts[0], limit, uint64_t{1} << 40)) return false;
  const Waiter waiter{client,
                      {parts.begin() + 1, parts.end()},
                      values,
                      limit == 0 ? kNever : now + static_cast<Nanos>(limit) * kMilli};
  if (all_there(store, waiter.keys)) {
    give(store, waiter);
  } else {
    store.waiters.push_back(waiter);
  }
  return true;
}

void StoreTable::wake(Store& store) {
  store.waiters.remove_if([&](const Waiter& waiter) {
    if (!all_there(store, waiter.keys)) return false;
    give(store, waiter);
    return true;
  });
}

void StoreTable::on_end(Client client) {
  const auto it = store_of_.find(client);
  if (it == store_of_.end()) return;
  Store& store = stores_[it->second];
  store.waiters.remove_if([&](const Waiter& w) { return w.client == client; });
  if (--store.clients == 0) {
    for (const auto& [key, value] : store.values) bytes_ -= cost(key, value);
    stores_.erase(it->second);
  }
  store_of_.erase(it);
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
