// A backend is made outside of the lock of the table, under one of its own: making it calls Python
// and may wait for other ranks, while abort() and stats() of other threads must not block.
#include "fallbacks.h"

#include "backend.h"

namespace mcast::pg {
namespace {

FallbackMaker& fallback_maker() {
  static auto* const maker = new FallbackMaker;  // other threads may call it at exit
  return *maker;
}

}  // namespace

void set_fallback_maker(FallbackMaker maker) { fallback_maker() = std::move(maker); }

std::string offered_fallback(const std::string& choice) {
  return fallback_maker().offered ? fallback_maker().offered(choice) : "";
}

std::string Fallbacks::kind(c10::DeviceType device) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = kinds_.find(device);
    if (known != kinds_.end()) return known->second;
  }
  const std::string name = c10::DeviceTypeName(device, /*lower_case=*/true);
  std::string kind = fallback_maker().kind ? fallback_maker().kind(group_, name) : "";
  const std::lock_guard lock(mutex_);
  return kinds_.emplace(device, std::move(kind)).first->second;
}

bool Fallbacks::none_on(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return true;
  const std::string name = kind(device);
  return name.empty() || name == "gloo";  // Gloo transfers through the host itself
}

BackendPtr Fallbacks::get(c10::DeviceType device) {
  const std::string name = kind(device);
  if (name.empty()) return {};
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    if (released_) return {};
    auto& known = entries_[name];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  const std::lock_guard making(entry->making);
  if (entry->backend) return entry->backend;
  BackendPtr made = fallback_maker().make(group_, name);
  TORCH_CHECK_VALUE(
      made && made->getRank() == group_.getRank() && made->getSize() == group_.getSize(),
      "mcast: the fallback must have rank ", group_.getRank(), " of ", group_.getSize());
  const std::lock_guard lock(mutex_);
  entry->backend = made;
  return made;
}

std::vector<BackendPtr> Fallbacks::made() const {
  const std::lock_guard lock(mutex_);
  std::vector<BackendPtr> backends;
  for (const auto& [name, entry] : entries_) {
    if (entry->backend) backends.push_back(entry->backend);
  }
  return backends;
}

std::vector<BackendPtr> Fallbacks::take() {
  std::vector<BackendPtr> backends = made();
  const std::lock_guard lock(mutex_);
  entries_.clear();
  return backends;
}

void Fallbacks::look_again() {
  const std::lock_guard lock(mutex_);
  kinds_.clear();
}

std::vector<BackendPtr> Fallbacks::release() {
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  return take();
}

}  // namespace mcast::pg
