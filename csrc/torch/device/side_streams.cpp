// Pairs are taken from torch's pool and never returned: a closed gate in a stream that other code
// also got from the pool would block the kernels of that code. So there are few: one per lane of a
// device, and some for messages. Message pairs have no gates, but their copies wait for the
// caller's stream as it was at the post, and that may wait for a message that comes late or never.
// Unrelated streams of the caller therefore have a pair each, shared round-robin if there are many.
// (A pool has 32 streams. One more pair per stream would reuse those with gates.)
#include "device/side_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "device/copy_plan.h"

namespace mcast::pg {
namespace {

constexpr int kMessagePairs = 8;
// Use of a pair: a lane, or messages from this number on.
constexpr int kGathers = 0, kReduces = 1, kMessages = 2;

using Pair = std::pair<c10::Stream, c10::Stream>;

struct Pairs {
  std::mutex mutex;
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, int>, Pair> made;
  // The caller's streams that have posted messages, by device.
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::map<c10::StreamId, int>> callers;

  Pair of(c10::Device device, int use) {  // mutex held
    const std::tuple key(device.type(), device.index(), use);
    const auto found = made.find(key);
    if (found != made.end()) return found->second;
    const c10::impl::VirtualGuardImpl guard(device.type());
    const Pair pair(guard.getStreamFromGlobalPool(device, true),
                    guard.getStreamFromGlobalPool(device, true));
    return made.emplace(key, pair).first->second;
  }
};

Pairs& pairs() {
  static auto* const all = new Pairs;  // not destroyed at exit, when streams are still in use
  return *all;
}

}  // namespace

SideStreams SideStreams::make(c10::Device device, bool reduces, const Gate* gate, size_t piece,
                              size_t chunk) {
  const size_t unit = chunk == 0 ? kAlign : chunk;
  const std::lock_guard lock(pairs().mutex);
  const auto [out, in] = pairs().of(device, reduces ? kReduces : kGathers);
  return {out, in, reduces, gate, rounded(piece, unit), unit};
}

SideStreams SideStreams::of_messages(const c10::Stream& caller, const Gate* gate, size_t piece) {
  const c10::Device device = caller.device();
  const std::lock_guard lock(pairs().mutex);
  auto& callers = pairs().callers[{device.type(), device.index()}];
  const int next = static_cast<int>(callers.size()) % kMessagePairs;
  const int number = callers.try_emplace(caller.id(), next).first->second;
  const auto [out, in] = pairs().of(device, kMessages + number);
  return {out, in, true, gate, rounded(piece, kAlign), kAlign};
}

}  // namespace mcast::pg
