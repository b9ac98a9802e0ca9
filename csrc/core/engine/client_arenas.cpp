// First fit, the arenas in the order in which they came; neighbours that are free are joined.
// Operations take few spans, each of many pages, so lists are short. Arenas are never given back
// while the link lives: their pages have been touched, and the next step wants as much again.
#include "engine/client_arenas.h"

#include <algorithm>

namespace mcast {

std::shared_ptr<ClientArenas::Span> ClientArenas::carve(size_t bytes) {
  for (Arena& arena : arenas_) {
    for (auto it = arena.free.begin(); it != arena.free.end(); ++it) {
      const auto [offset, length] = *it;
      if (length < bytes) continue;
      arena.free.erase(it);
      if (length > bytes) arena.free.emplace(offset + bytes, length - bytes);
      const Span span{arena.grant.space, offset, bytes, arena.grant.memory.data() + offset};
      return {new Span(span), [this](const Span* done) {
                give_back(*done);
                delete done;
              }};
    }
  }
  return nullptr;
}

Result<std::shared_ptr<ClientArenas::Span>> ClientArenas::take(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  const auto try_once = [&] {
    const std::lock_guard<std::mutex> held(mutex_);
    return carve(bytes);
  };
  if (auto span = try_once()) return span;
  const std::lock_guard<std::mutex> one(asking_);
  if (auto span = try_once()) return span;
  Result<Grant> grant = ask_(std::max(bytes, kLeast));
  if (!grant.ok()) return grant.status();
  const std::lock_guard<std::mutex> held(mutex_);
  const size_t size = grant->memory.size();
  arenas_.push_back({std::move(grant).value(), {{0, size}}});
  auto span = carve(bytes);
  if (!span) return Status(Code::kInternal, "an arena is smaller than was asked for");
  return span;
}

void ClientArenas::give_back(const Span& span) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto arena = std::find_if(arenas_.begin(), arenas_.end(),
                                  [&](const Arena& a) { return a.grant.space == span.space; });
  if (arena == arenas_.end()) return;
  uint64_t offset = span.offset, length = span.bytes;
  auto next = arena->free.lower_bound(offset);
  if (next != arena->free.end() && next->first == offset + length) {
    length += next->second;
    next = arena->free.erase(next);
  }
  if (next != arena->free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  arena->free.emplace(offset, length);
}

}  // namespace mcast
