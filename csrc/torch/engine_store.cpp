// Each call is one request; the store waits for keys, not this process.
#include "engine_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "store.h"
#include "work.h"

namespace mcast::pg {
namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void require(const Status& status) {
  TORCH_CHECK_WITH(DistStoreError, status.ok(), status.message());
}

}  // namespace

EngineStore::EngineStore(const StoreClient::Where& where, const std::chrono::milliseconds& timeout)
    : Store(timeout) {
  auto client = StoreClient::connect(where, nanos_of_ms(timeout.count()));
  require(client.status());
  client_ = std::move(client).value();
}

std::vector<std::string> EngineStore::ask(wire::StoreOp op, std::vector<std::string> parts) {
  // The core uses no exceptions: one raised by a signal handler is passed around it.
  std::exception_ptr raised;
  const auto answer = client_->ask({op, std::move(parts)}, [&raised] {
    try {
      check_signals();
    } catch (...) {
      raised = std::current_exception();
    }
    return raised != nullptr;
  });
  if (raised) std::rethrow_exception(raised);
  require(answer.status());
  return *answer;
}

// 0 milliseconds means no limit, here and for the store.
std::vector<std::string> EngineStore::ask_for(wire::StoreOp op,
                                              const std::vector<std::string>& keys,
                                              std::chrono::milliseconds timeout) {
  std::vector<std::string> parts{
      std::to_string(std::max<std::chrono::milliseconds::rep>(timeout.count(), 0))};
  parts.insert(parts.end(), keys.begin(), keys.end());
  return ask(op, std::move(parts));
}

c10::intrusive_ptr<c10d::Store> EngineStore::clone() {
  return c10::make_intrusive<EngineStore>(client_->where(), timeout_);
}

void EngineStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(wire::StoreOp::kSet, {key, text_of(value)});
}

std::vector<uint8_t> EngineStore::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& currentValue,
                                             const std::vector<uint8_t>& newValue) {
  return bytes_of_text(
      ask(wire::StoreOp::kCompareSet, {key, text_of(currentValue), text_of(newValue)}).at(0));
}

std::vector<uint8_t> EngineStore::get(const std::string& key) {
  return bytes_of_text(ask_for(wire::StoreOp::kGet, {key}, timeout_).at(0));
}

int64_t EngineStore::add(const std::string& key, int64_t value) {
  return std::stoll(ask(wire::StoreOp::kAdd, {key, std::to_string(value)}).at(0));
}

bool EngineStore::deleteKey(const std::string& key) {
  return ask(wire::StoreOp::kDelete, {key}).at(0) == "1";
}

bool EngineStore::check(const std::vector<std::string>& keys) {
  return ask(wire::StoreOp::kCheck, keys).at(0) == "1";
}

int64_t EngineStore::getNumKeys() { return std::stoll(ask(wire::StoreOp::kCount, {}).at(0)); }

void EngineStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  ask_for(wire::StoreOp::kWait, keys, timeout);
}

void EngineStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask(wire::StoreOp::kAppend, {key, text_of(value)});
}

std::vector<std::vector<uint8_t>> EngineStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  for (const std::string& value : ask_for(wire::StoreOp::kGet, keys, timeout_)) {
    values.push_back(bytes_of_text(value));
  }
  return values;
}

void EngineStore::multiSet(const std::vector<std::string>& keys,
                           const std::vector<std::vector<uint8_t>>& values) {
  TORCH_CHECK_WITH(DistStoreError, keys.size() == values.size(),
                   "multi_set: expected as many values as keys");
  std::vector<std::string> parts;
  for (size_t i = 0; i < keys.size(); i++) {
    parts.push_back(keys[i]);
    parts.push_back(text_of(values[i]));
  }
  ask(wire::StoreOp::kMultiSet, std::move(parts));
}

}  // namespace mcast::pg
