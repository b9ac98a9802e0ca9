// Pairs are taken from torch's pool and never given back: a closed gate in a stream that somebody
// else got from the pool too would hold up his kernels. So they are few: one for each lane of a
// device, and some for messages. The latter have no gates, but what is copied waits for the
// caller's stream as it was at the post, and that may wait for a message that comes late or never:
// streams of the caller that have nothing to do with each other therefore have a pair each, in turn
// where they are many. (A pool has 32 streams. One pair more for each stream would come to those
// with gates again.)
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
// What a pair is for: a lane, or messages from this number on.
constexpr int kGathers = 0, kReduces = 1, kMessages = 2;

using Pair = std::pair<c10::Stream, c10::Stream>;

struct Pairs {
  std::mutex mutex;
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, int>, Pair> made;
  // Streams of the caller that have posted messages, of a device.
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
