// FNV-1a over the host's text and the index; code that ranks stations mixes it with other values.
#include "wire/station_hash.h"

#include <map>
#include <string>

namespace mcast::wire {
namespace {

constexpr uint64_t kOffset = 0xcbf29ce484222325u, kPrime = 0x100000001b3u;

}  // namespace

std::vector<uint64_t> station_hashes(const StationRoster& roster) {
  std::map<std::string, uint64_t> places;
  std::vector<uint64_t> hashes;
  for (const StationEntry& station : roster.stations) {
    uint64_t hash = kOffset;
    for (const char c : station.host) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
    hashes.push_back((hash ^ places[station.host]++) * kPrime);
  }
  return hashes;
}

}  // namespace mcast::wire
