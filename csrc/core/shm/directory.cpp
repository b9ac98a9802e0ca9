// Tokens are random numbers of 64 bits, so only processes that received one can use it.
#include "shm/directory.h"

#include <utility>

#include "base/random.h"

namespace mcast {

HostDirectory::Ticket::~Ticket() {
  const auto directory = directory_.lock();
  if (!directory) return;
  const std::lock_guard<std::mutex> held(directory->mutex_);
  directory->places_.erase(token_);
}

std::unique_ptr<HostDirectory::Ticket> HostDirectory::enter(
    const std::shared_ptr<HostDirectory>& directory, Entry entry) {
  const std::lock_guard<std::mutex> held(directory->mutex_);
  uint64_t token = 0;
  do {
    token = secure_random64();
  } while (token == 0 || directory->places_.count(token) != 0);
  directory->places_[token] = {std::move(entry), {}};
  return std::make_unique<Ticket>(directory, token);
}

Result<HostDirectory::Entry> HostDirectory::find(uint64_t token, const Entry& asked, Member by) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto it = places_.find(token);
  if (it == places_.end()) {
    return Status(Code::kUnavailable, "another engine of this host runs it, or it has ended");
  }
  const Entry& entry = it->second.entry;
  if (entry.group != asked.group || entry.rank != asked.rank || entry.size != asked.size) {
    return Status(Code::kMismatch, "it is in the engine's directory as rank " +
                                       std::to_string(entry.rank) + " of " +
                                       std::to_string(entry.size) + " of another group");
  }
  if (!it->second.found_by.insert(by).second) {
    return Status(Code::kMismatch,
                  "two clients of the engine claim to be rank " + std::to_string(by));
  }
  return entry;
}

}  // namespace mcast
