// Lanes are asked on their own threads, one round trip each; the store is asked for all records at
// once and answers when the last rank has published.
#include "engine/introduction.h"

#include <algorithm>

#include "engine/clock.h"

namespace mcast {

bool describe_lanes(const Lanes& lanes, RankRecord& record) {
  const bool multicast = lanes[0]->call([&record](Lane& l, Nanos) {
    Transport& t = l.transport();
    record.transport = t.name();
    record.external = t.stream().address(false);
    record.loopback = t.stream().address(true);
    record.datagram_external = t.datagram().max_datagram({1, 1, false});
    record.datagram_loopback = t.datagram().max_datagram({1, 1, true});
    record.budget = t.datagram().receive_budget();
  });
  return multicast && lanes[1]->call([&record](Lane& l, Nanos) {
    record.reduce_external = l.transport().stream().address(false);
    record.reduce_loopback = l.transport().stream().address(true);
  });
}

Result<std::vector<RankRecord>> exchange(const GroupSpec& spec, KeyValueStore& store,
                                         const std::string& prefix, const RankRecord& mine,
                                         Nanos start, Nanos deadline) {
  const auto key = [&prefix](uint32_t rank) { return prefix + "/" + std::to_string(rank); };
  if (Status status = store.set(key(spec.rank), mine.encode()); !status.ok()) {
    return status.with_context("publishing this rank's address");
  }
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < spec.size; r++) keys.push_back(key(r));
  Result<std::vector<std::string>> values =
      store.multi_get(keys, std::max<Nanos>(0, deadline - monotonic_now()));
  if (!values.ok()) {
    return values.status().with_context("waiting for the addresses of all ranks, for " +
                                        seconds_text(monotonic_now() - start) + " (limit " +
                                        seconds_text(spec.timeout) + ")");
  }
  std::vector<RankRecord> records;
  for (const std::string& text : *values) {
    Result<RankRecord> record = RankRecord::decode(text);
    if (!record.ok()) {
      return record.status().with_context("rank " + std::to_string(records.size()));
    }
    records.push_back(std::move(record).value());
  }
  return records;
}

}  // namespace mcast
