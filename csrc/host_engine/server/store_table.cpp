// Semantics of c10d's stores: a missing key counts as 0 for add(), and may be set by compare_set()
// if no value is expected; wait() and get() are for all keys at once. A waiting client has an entry
// in its store's list, which is searched when a key appears. The contents of a store are counted
// with the overhead of a map or a list for each piece, so many small keys do not circumvent the
// limit. The size of a reply is summed before the reply is built: a request may name one large
// value many times, and many clients may wait for one.
#include "host_engine/server/store_table.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/units.h"

namespace mcast::service {
namespace {

using wire::StoreOp;
using wire::StoreRecord;

constexpr size_t kShownKey = 64;  // shown bytes of a key in an error

size_t cost(const std::string& key, const std::string& value) {
  return StoreTable::kEntryBytes + key.size() + value.size();
}

// Signed whole numbers, as add() stores them.
bool read_signed(const std::string& text, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

constexpr const char* kFull =
    "this host's share of the memory of the engine's stores is used up: all hosts together have "
    "256 MiB, and one host at most as much as is left for the others";
constexpr const char* kTooLong = "the answer is longer than a store's record may be";
static_assert(StoreTable::kMostBytes == size_t{256} << 20);

// Allowed number of parts of records of this kind: from, to, and a multiple of.
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

bool StoreTable::room_for(Client client, size_t parts, size_t bytes) {
  if (!wire::store_record_fits(parts, bytes)) {
    fail(client, kTooLong);
    return false;
  }
  const size_t size = wire::store_record_bytes(parts, bytes);
  Member& member = members_.at(client);
  const size_t cost = size > kClientBytes ? size : 0;
  if (!shares_.take(member.source, cost)) {
    fail(client, kFull);
    return false;
  }
  member.answer += cost;
  return true;
}

bool StoreTable::admit(Client client, const IpAddress& source) {
  if (!shares_.take(source, kClientBytes)) return false;
  members_[client].source = source;
  return true;
}

bool StoreTable::expect(Client client, size_t bytes) {
  Member& member = members_.at(client);
  const size_t cost = bytes > kClientBytes ? bytes : 0;
  if (!shares_.take(member.source, cost)) return false;
  member.question += cost;
  return true;
}

void StoreTable::refuse(Client client) { fail(client, kFull); }

void StoreTable::on_taken(Client client) {
  Member& member = members_.at(client);
  shares_.give(member.source, std::exchange(member.answer, 0));
}

bool StoreTable::open(Client client, Member& member, const Parts& parts) {
  const std::string& name = parts[2];
  auto at = stores_.find(name);
  if (at == stores_.end()) {
    if (!shares_.take(member.source, kStoreBytes + name.size())) {
      fail(client, kFull);
      return true;
    }
    at = stores_.try_emplace(name).first;
    at->second.source = member.source;
  }
  at->second.clients++;
  member.store = name;
  member.open = true;
  done(client);
  return true;
}

bool StoreTable::on_record(Client client, const StoreRecord& record, Nanos now) {
  const auto it = members_.find(client);
  if (it == members_.end() || !shape(record) || it->second.waits) return false;
  Member& member = it->second;
  if ((record.op == StoreOp::kOpen) == member.open) return false;
  // Copies that the table makes are counted separately from here on.
  shares_.give(member.source, std::exchange(member.question, 0));
  if (record.op == StoreOp::kOpen) return open(client, member, record.parts);
  Store& store = stores_[member.store];
  switch (record.op) {
    case StoreOp::kDelete: {
      const auto at = store.values.find(record.parts[0]);
      const bool there = at != store.values.end();
      if (there) {
        shares_.give(at->second.source, cost(at->first, at->second.text));
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
    case StoreOp::kList:
      list(client, store);
      return true;
    case StoreOp::kWait:
    case StoreOp::kGet:
      return wait(client, store, record.parts, record.op == StoreOp::kGet, now);
    default:
      return change(client, store, record);
  }
}

void StoreTable::list(Client client, const Store& store) {
  size_t bytes = 0;
  for (const auto& [key, value] : store.values) bytes += key.size();
  if (!room_for(client, store.values.size(), bytes)) return;
  Parts keys;
  keys.reserve(store.values.size());
  for (const auto& [key, value] : store.values) keys.push_back(key);
  done(client, std::move(keys));
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
    if ((there && !read_signed(at->second.text, before)) ||
        __builtin_add_overflow(before, sum, &sum)) {
      fail(client, "key '" + parts[0].substr(0, kShownKey) + "' does not hold a 64-bit number");
      return true;
    }
    answer = {std::to_string(sum)};
    put_all = put(client, store, parts[0], answer[0]);
  } else if (record.op == StoreOp::kAppend) {
    static const std::string kNothing;
    put_all = put(client, store, parts[0], there ? at->second.text : kNothing, parts[1]);
  } else if (record.op == StoreOp::kCompareSet) {
    const bool equal = there ? at->second.text == parts[1] : parts[1].empty();
    const std::string& now = equal ? parts[2] : there ? at->second.text : parts[1];
    if (!room_for(client, 1, now.size())) return true;
    answer = {now};
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

bool StoreTable::put(Client client, Store& store, const std::string& key, const std::string& head,
                     const std::string& tail) {
  const IpAddress source = members_.at(client).source;
  const auto at = store.values.find(key);
  const bool there = at != store.values.end();
  const size_t after = cost(key, head) + tail.size();
  const size_t before = there ? cost(key, at->second.text) : 0;
  const IpAddress owner = there ? at->second.source : source;
  const size_t more = owner == source ? after - std::min(after, before) : after;
  if (!shares_.take(source, more)) {
    fail(client, kFull);
    return false;
  }
  shares_.give(owner, owner == source ? before - std::min(after, before) : before);
  if (there && &head == &at->second.text) {
    at->second.text += tail;
    at->second.source = source;
  } else {
    store.values.insert_or_assign(key, Value{head + tail, source});
  }
  return true;
}

bool StoreTable::all_there(const Store& store, const Parts& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return store.values.count(key) > 0; });
}

// Starts with the key that was missing before: as long as it is missing, no other one is looked up.
bool StoreTable::all_there(const Store& store, Waiter& waiter) const {
  for (size_t seen = 0; seen < waiter.keys.size(); seen++) {
    if (store.values.count(waiter.keys[waiter.missing]) == 0) return false;
    waiter.missing = (waiter.missing + 1) % waiter.keys.size();
  }
  return true;
}

void StoreTable::give(const Store& store, const Waiter& waiter) {
  if (!waiter.values) return done(waiter.client);
  size_t bytes = 0;
  for (const std::string& key : waiter.keys) bytes += store.values.at(key).text.size();
  if (!room_for(waiter.client, waiter.keys.size(), bytes)) return;
  Parts values;
  values.reserve(waiter.keys.size());
  for (const std::string& key : waiter.keys) values.push_back(store.values.at(key).text);
  done(waiter.client, std::move(values));
}

bool StoreTable::wait(Client client, Store& store, const Parts& parts, bool values, Nanos now) {
  uint64_t limit = 0;
  if (!read_number(parts[0], limit, uint64_t{1} << 40)) return false;
  Member& member = members_.at(client);
  Waiter waiter{client,
                {parts.begin() + 1, parts.end()},
                values,
                limit == 0 ? kNever : now + static_cast<Nanos>(limit) * kMilli,
                0};
  if (all_there(store, waiter)) {
    give(store, waiter);
    return true;
  }
  for (const std::string& key : waiter.keys) waiter.cost += cost(key, "");
  if (!shares_.take(member.source, waiter.cost)) {
    fail(client, kFull);
    return true;
  }
  member.waits = true;
  store.waiters.push_back(std::move(waiter));
  return true;
}

void StoreTable::let_go(const Waiter& waiter) {
  Member& member = members_.at(waiter.client);
  shares_.give(member.source, waiter.cost);
  member.waits = false;
}

void StoreTable::wake(Store& store) {
  store.waiters.remove_if([&](Waiter& waiter) {
    if (!all_there(store, waiter)) return false;
    let_go(waiter);
    give(store, waiter);
    return true;
  });
}

void StoreTable::on_end(Client client) {
  const auto it = members_.find(client);
  if (it == members_.end()) return;
  const Member& member = it->second;
  if (member.open) {
    Store& store = stores_[member.store];
    store.waiters.remove_if([&](const Waiter& waiter) {
      if (waiter.client != client) return false;
      let_go(waiter);
      return true;
    });
    if (--store.clients == 0) {
      for (const auto& [key, value] : store.values) {
        shares_.give(value.source, cost(key, value.text));
      }
      shares_.give(store.source, kStoreBytes + member.store.size());
      stores_.erase(member.store);
    }
  }
  shares_.give(member.source, kClientBytes + member.question + member.answer);
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
