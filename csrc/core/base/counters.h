// Counters: one for every rare event, and the traffic totals. Written by the lane thread only, read
// by any thread at any time (relaxed atomics without a locked instruction). Values are cumulative
// since the group was made.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mcast {

// name, help. Bytes of datagrams include the 32-byte header, not IP/UDP headers; bytes of frames
// include the frame header, not TCP/IP.
#define MCAST_COUNTERS(X)                                                                    \
  X(datagrams_sent, "multicast datagrams sent")                                              \
  X(datagram_bytes_sent, "bytes of multicast datagrams sent, headers included")              \
  X(gathered_datagrams, "datagrams whose payload the device read from the tensor")           \
  X(datagrams_received, "datagrams received for this group")                                 \
  X(datagram_bytes_received, "bytes of datagrams received for this group")                   \
  X(frames_sent, "stream frames sent")                                                       \
  X(frame_bytes_sent, "bytes of stream frames sent")                                         \
  X(frames_received, "stream frames received")                                               \
  X(frame_bytes_received, "bytes of stream frames received")                                 \
  X(ops_posted, "operations posted")                                                         \
  X(ops_completed, "operations completed without error")                                     \
  X(ops_failed, "operations that ended with an error")                                       \
  X(chunks_placed, "chunks verified and placed in their region")                             \
  X(chunks_staged, "early chunks kept in staging")                                           \
  X(staging_drops, "early chunks dropped because staging was full")                          \
  X(eager_stalls, "small operations held back until late ranks can keep them")               \
  X(early_fetches_sent, "requests for data that was sent before its operation was called")   \
  X(early_chunks_sent, "chunks sent in answer to early fetches")                             \
  X(early_chunks_received, "chunks received in answer to early fetches, before the call")    \
  X(duplicates, "chunks that had arrived before")                                            \
  X(own_echo, "own datagrams looped back by the network")                                    \
  X(stale, "datagrams or frames of an operation that is over")                               \
  X(foreign, "datagrams of another group on the same address")                               \
  X(neighbour, "datagrams of other groups on our hosts: of this job, or of a job beside it") \
  X(late, "datagrams or frames of groups that were closed here")                             \
  X(malformed, "datagrams or frames that do not parse")                                      \
  X(corrupt, "datagrams or frames whose checksum is wrong")                                  \
  X(mismatched, "datagrams whose operation descriptor differs from ours")                    \
  X(gaps, "chunks found missing behind later ones")                                          \
  X(cutoffs, "times the cutoff timer found chunks missing")                                  \
  X(fetches_sent, "fetch requests sent")                                                     \
  X(fetches_received, "fetch requests received")                                             \
  X(fetch_timeouts, "fetch requests that were not answered in time")                         \
  X(not_have_sent, "fetch requests (or parts) answered with NotHave")                        \
  X(not_have_received, "NotHave answers received")                                           \
  X(repair_chunks_sent, "chunks sent to another rank as repair")                             \
  X(repair_bytes_sent, "payload bytes of chunks sent as repair")                             \
  X(repair_chunks_received, "chunks placed from a repair")                                   \
  X(fetch_grants_sent, "fetch requests answered with permission to read this rank's memory") \
  X(repair_reads, "reads of lost chunks out of another rank's memory")                       \
  X(repair_read_bytes, "payload bytes of chunks read out of another rank's memory")          \
  X(remulticast_chunks, "chunks multicast again because several ranks asked")                \
  X(positions_sent, "Position announcements sent")                                           \
  X(positions_received, "Position announcements received")                                   \
  X(credit_stalls, "times a sender stopped at its credit limit")                             \
  X(congestion_cuts, "times a sender reduced its window after loss")                         \
  X(budget_overcommits, "streams granted a minimum window beyond the receive budget")        \
  X(retransmit_waits, "small operations that waited for retransmit memory")                  \
  X(would_block, "sends that the transport could not take at once")                          \
  X(share_waits, "sends held back because other jobs of the engine used less of the link")   \
  X(fragmented, "datagrams sent in IP fragments because an interface's MTU has shrunk")      \
  X(blocks_verified, "blocks that match the digests sent by their roots (source_auth)")      \
  X(blocks_forged, "blocks that differ from the digests that their roots have sent")         \
  X(pings_sent, "liveness probes sent")                                                      \
  X(aborts_sent, "abort notices sent")                                                       \
  X(aborts_received, "abort notices received")                                               \
  X(ring_bytes_sent, "payload bytes sent by ring algorithms over streams")                   \
  X(probes_sent, "reach probes sent")                                                        \
  X(reduce_bytes_sent, "payload bytes of contributions and results sent to owners")          \
  X(reduce_bytes_received, "payload bytes of contributions and results received")            \
  X(exchange_bytes_sent, "payload bytes of all_to_all, gather and scatter sent")             \
  X(exchange_bytes_received, "payload bytes of all_to_all, gather and scatter received")     \
  X(messages_sent, "messages to one rank (send) that have left")                             \
  X(message_bytes_sent, "payload bytes of messages sent")                                    \
  X(messages_received, "messages from one rank (recv) that have arrived")                    \
  X(message_bytes_received, "payload bytes of messages received")                            \
  X(messages_kept, "messages that arrived before a matching receive")                        \
  X(grant_waits, "grants to contributors held back because multicast was arriving")          \
  X(shm_rounds, "rounds published to the ranks of the same host")                            \
  X(shm_slot_bytes, "payload bytes copied into shared memory")                               \
  X(shm_direct_bytes, "payload bytes read from the memory of ranks of the same host")        \
  X(shm_mapped_bytes, "payload bytes taken in place from tensors of ranks of the same host") \
  X(shm_sleeps, "times a thread slept until a rank of the same host woke it")                \
  X(shm_wakes, "times a rank of the same host was woken")                                    \
  X(engine_mapped_bytes, "bytes of tensors that the engine of the host uses in place")       \
  X(engine_span_bytes, "bytes of tensors that this rank copies for the engine of the host")  \
  X(engine_moved_bytes, "bytes of tensors that the engine of the host copies")               \
  X(waits_yielded, "waits for a rank of the same host that yielded the core first")          \
  X(waits_braked, "waits that only slept, because other programs had taken a yielded core")  \
  X(agg_operations, "reductions partly assigned to aggregators")                             \
  X(agg_bytes_sent, "payload bytes of contributions sent to aggregators")                    \
  X(agg_results, "segments of this rank's blocks that an aggregator has folded")             \
  X(agg_diverted, "segments assigned to an aggregator that this rank has folded itself")     \
  X(partial_results, "reductions that ended without the inputs of late ranks")               \
  X(agg_lost, "aggregators that were given up, counted by station")                          \
  X(path_checks, "times the group asked again whether multicast reaches every rank")         \
  X(floods_left, "times this rank left a multicast address that was flooded")                \
  X(path_switches, "changes between multicast and the ring after the group's creation")      \
  X(rate_tests, "times the group compared the rate of unicast with multicast's")             \
  X(rate_test_bytes, "bytes sent to compare the rates of unicast and multicast")             \
  X(roster_changes, "times the group changed the aggregators of its reductions")             \
  X(agg_repeated, "aggregation frames that had already arrived before")                      \
  X(agg_stale, "aggregation frames of an operation or roster that is over")                  \
  X(agg_malformed, "aggregation frames that broke the protocol")                             \
  X(agg_declined, "operations that an aggregator did not fold")                              \
  X(agg_held, "results that an aggregator could not send at once")                           \
  X(agg_staged_bytes, "bytes that an aggregator copied because their turn had not come")     \
  X(agg_idle, "times an aggregator reported that contributions to a segment were missing")

enum class Counter : uint16_t {
#define MCAST_COUNTER_ENUM(name, help) name,
  MCAST_COUNTERS(MCAST_COUNTER_ENUM)
#undef MCAST_COUNTER_ENUM
      kCount
};

inline constexpr size_t kCounterCount = static_cast<size_t>(Counter::kCount);

// Stable names and help texts, indexed by Counter.
const char* counter_name(Counter counter) noexcept;
const char* counter_help(Counter counter) noexcept;

class Counters {
 public:
  // Lane thread only.
  void add(Counter counter, uint64_t n = 1) noexcept {
    auto& v = values_[static_cast<size_t>(counter)];
    v.store(v.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  // Any thread.
  uint64_t get(Counter counter) const noexcept {
    return values_[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, kCounterCount> values_{};
};

}  // namespace mcast
