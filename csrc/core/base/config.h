// Settings: one table {name, environment variable, type, default, range, agreed, lane, help}. The
// README table, docs/settings.md, `doctor`, Python's Options and validation are all generated from
// it. An explicit option wins over its environment variable, which wins over the default.
//
// "agreed" settings decide which messages ranks exchange; their text is compared when a group is
// made, and a difference is an error that shows both sides.
//
// "lane" settings are those that sockets and threads depend on: groups that differ in one of them
// share no lanes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Transports, each with a folder of transport/ that defines its row (transport/registry.h). The
// first one is there on every host: what groups fall back to.
#define MCAST_TRANSPORTS(T) T(udp) T(verbs)

#define MCAST_TRANSPORT_NAME(name) #name,
inline constexpr const char* kTransportNames[] = {MCAST_TRANSPORTS(MCAST_TRANSPORT_NAME)};
#undef MCAST_TRANSPORT_NAME

// kind, name, env, default, min, max, agreed, lane, help.
// Kinds: U unsigned (bytes and counts; suffixes K, M, G = 2^10, 2^20, 2^30; link_rate: as tc has
// rates, "300mbit"), D duration in milliseconds (may be fractional), S string.
#define MCAST_SETTINGS(U, D, S)                                                                    \
  S(transport, "MCAST_TRANSPORT", "auto", true, false,                                             \
    "auto: verbs if the group has several hosts and every rank can use it, else udp; udp: "        \
    "sockets; verbs: RDMA; if a rank cannot use it, an error names the rank and the reason")       \
  S(ib_hca, "MCAST_IB_HCA", "", false, true,                                                       \
    "RDMA devices for the verbs transport, NCCL grammar: prefix list \"mlx5_0:1,mlx5_1\", exact "  \
    "\"=mlx5_0\", exclude \"^mlx5_2\"; empty: the first active port. With an exact list of two, "  \
    "the multicast lane uses the first and the reduce lane the second")                            \
  S(shared_memory, "MCAST_SHARED_MEMORY", "auto", true, false,                                     \
    "between ranks of one host: auto: shared memory and reads of each other's memory; slots: "     \
    "shared memory only; off: the network path, as between hosts. Where a group has several "      \
    "hosts, auto also lets the ranks of a host act as one towards the others")                     \
  S(algorithm, "MCAST_ALGORITHM", "auto", true, false,                                             \
    "auto: multicast where the probe reaches every host, else ring; multicast: fail if it does "   \
    "not;"                                                                                         \
    " ring: always the unicast ring")                                                              \
  S(interface, "MCAST_SOCKET_IFNAME", "", false, true,                                             \
    "network interface, NCCL grammar: prefix list \"eth,ib\", exact \"=eth0\", exclude "           \
    "\"^docker\"; or an address or network, \"10.1.0.0/16\", \"fd00:1::/64\"; empty: the fastest " \
    "network over which all ranks reach each other, else the interface that leads to the job's "   \
    "store. With an exact list \"=eth0,eth1\", the multicast lane uses the first and the reduce "  \
    "lane the second; \"=eth0+eth1\" stripes a lane over several")                                 \
  S(faults, "MCAST_FAULTS", "", false, true,                                                       \
    "fault injection for tests, e.g. \"drop:rate=0.1,seed=7;duplicate:rate=0.01\"; empty: none")   \
  U(max_mtu, "MCAST_MAX_MTU", 9000, 576, 65535, true, true,                                        \
    "upper bound of the path MTU used, bytes of IP packet")                                        \
  U(chunk, "MCAST_CHUNK", 0, 0, 65408, true, false,                                                \
    "payload bytes of one datagram, a multiple of 64; 0: what the path MTU allows")                \
  U(eager, "MCAST_EAGER", 32768, 0, 1 << 20, true, false,                                          \
    "most bytes that a root may send before receivers are ready; also the limit of small "         \
    "operations. A broadcast has only one root, which may send 8 times as much, up to 256K and a " \
    "quarter of staging")                                                                          \
  U(window, "MCAST_WINDOW", 0, 0, 1u << 30, true, false,                                           \
    "bytes in flight per active root; 0: derived from the receive buffers of the group")           \
  U(chains, "MCAST_CHAINS", 0, 0, 65535, true, false,                                              \
    "roots of a large allgather that send at once; 0: chosen from the window and the budget")      \
  U(subgroups, "MCAST_SUBGROUPS", 1, 1, 16, true, false,                                           \
    "parts that large broadcasts and all-gathers between hosts are cut into, each with a thread "  \
    "and sockets of its own; for links that one thread cannot fill. Hosts with several ranks "     \
    "always have one part for each rank")                                                          \
  U(arity, "MCAST_ARITY", 32, 2, 1024, true, false, "children per node of the control tree")       \
  U(staging, "MCAST_STAGING", 4 << 20, 0, 1u << 30, true, false,                                   \
    "bytes for data that arrives before its operation is posted, per group; small operations are " \
    "sent ahead to a late rank up to this amount")                                                 \
  U(retransmit, "MCAST_RETRANSMIT", 4 << 20, 65536, 1u << 30, false, false,                        \
    "bytes per group for copies of small operations, which are kept until all ranks have them")    \
  U(rcvbuf, "MCAST_RCVBUF", 32 << 20, 4096, 1u << 30, false, true,                                 \
    "socket receive buffer to request; the kernel may grant less (net.core.rmem_max)")             \
  U(sndbuf, "MCAST_SNDBUF", 1 << 20, 4096, 1u << 30, false, true,                                  \
    "datagram send buffer; if it is smaller than the queue limit of the link, it paces the "       \
    "sender; with link_rate, at most what a link carries in 2 ms")                                 \
  U(reorder, "MCAST_REORDER", 0, 0, 1 << 20, true, false,                                          \
    "chunks that may overtake a missing one before the gap counts as loss; 0: one send batch")     \
  U(ttl, "MCAST_TTL", 1, 0, 255, false, true,                                                      \
    "IP TTL, or hop limit of IPv6, of multicast datagrams (hops between subnets)")                 \
  S(port_range, "MCAST_PORT_RANGE", "", false, true,                                               \
    "ports to listen on for TCP, \"42000-42999\", so that a firewall can open them: two per rank " \
    "of a host, and two more per subgroup; empty: the kernel picks them")                          \
  U(incast, "MCAST_INCAST", 2 << 20, 65536, 1u << 30, true, false,                                 \
    "bytes of contributions that the owner of a reduction's block requests at once; limits its "   \
    "memory and the burst at its switch port")                                                     \
  S(fold, "MCAST_FOLD", "rank", true, false,                                                       \
    "order in which contributions are folded: rank: 0, 1, ...; turn: starting with the rank "      \
    "after the block's owner and ending with the owner")                                           \
  U(port_queue, "MCAST_PORT_QUEUE", 2 << 20, 65536, 1u << 30, true, false,                         \
    "bytes of all roots together that may wait at a switch port, in addition to the measured "     \
    "amount that the path itself holds; with link_rate, at most what a link carries in 30 ms")     \
  S(lane_policy, "MCAST_LANE_POLICY", "fair", false, false,                                        \
    "which lane yields where all-gather and reduce-scatter meet at a receiver: fair: half each; "  \
    "gather: all-gather first")                                                                    \
  S(aggregators, "MCAST_AGGREGATORS", "", true, false,                                             \
    "aggregators that fold reductions for groups of several hosts, \"host:port,host:port\"; "      \
    "empty: none. \"rack1/host:port\": an aggregator in the rack of that name. If ranks are in "   \
    "that rack (see rack), it folds for these ranks only, and sends its results to aggregators "   \
    "outside the ranks' racks")                                                                    \
  S(rack, "MCAST_RACK", "", false, false,                                                          \
    "name of this host's rack; if ranks are in several racks, contributions are folded within "    \
    "each rack first; letters, digits, '.', '-', '_'")                                             \
  S(aggregate, "MCAST_AGGREGATE", "careful", true, false,                                          \
    "how much of a reduce_scatter aggregators fold: careful: as much as possible without making "  \
    "a reduce_scatter that runs alone slower by more than an eighth; both: as much as is best "    \
    "beside an all_gather; off: nothing")                                                          \
  D(aggregator_patience, "MCAST_AGGREGATOR_PATIENCE", 1000, 10, 600000, true, false,               \
    "silence after which an aggregator counts as lost, ms; ranks then fold what it has not "       \
    "folded")                                                                                      \
  D(partial, "MCAST_PARTIAL", 0, 0, 86400000, true, false,                                         \
    "time after which a reduction ends without the inputs of ranks that have not called it, ms; "  \
    "0: never. Does not apply to small all_reduces, nor if ranks of a host contribute together")   \
  U(link_rate, "MCAST_LINK_RATE", 0, 0, 1ull << 40, true, false,                                   \
    "bits per second of a rank's link (\"25gbit\"), to compare with an aggregator's and to bound " \
    "the queue at a switch port; 0: aggregators are assumed to be as fast as ranks")               \
  S(engine, "MCAST_ENGINE", "inproc", false, false,                                                \
    "who runs the network: inproc: this process; host: the engine of this host (\"host:PATH\": "   \
    "the engine at that socket), or an error if there is none; auto or \"auto:PATH\": the engine " \
    "if one answers and the group may have several hosts, else this process. Experimental")        \
  S(engine_user, "MCAST_ENGINE_USER", "", false, false,                                            \
    "user that the engine of this host runs as, a name or a number; if the process at the socket " \
    "belongs to any other user, even root, it is refused; empty: root, this user and the owner "   \
    "of the socket's folder are trusted")                                                          \
  S(engine_memory, "MCAST_ENGINE_MEMORY", "map", false, false,                                     \
    "how tensors reach the engine: map: the engine maps the tensors that the group allocates "     \
    "(allocate_tensor(), or FSDP2 with set_allocate_memory_from_process_group_for_comm()), and "   \
    "this process copies all others; slots: this process copies all; copy: the engine copies "     \
    "all, which costs this process nothing; auto: as map, but the engine copies the others if it " \
    "runs as the same user; map_all: replaces torch's CPU allocator for the whole process: all "   \
    "tensors of 1 MiB and more that are made from now on (in the environment: from import torch "  \
    "on) are mapped, also by the other ranks of the host. A forked child may see what its parent " \
    "writes later to mapped tensors")                                                              \
  U(trace, "MCAST_TRACE", 4096, 0, 1 << 20, false, false,                                          \
    "operations kept for torch_mcast.trace(), per process")                                        \
  U(segment, "MCAST_SEGMENT", 1 << 20, 4096, 1 << 30, false, false,                                \
    "minimum bytes of a device tensor per copy to or from the host")                               \
  S(device_wait, "MCAST_DEVICE_WAIT", "auto", false, false,                                        \
    "what wait() on device tensors blocks: stream: the stream, if the device supports that; "      \
    "host: the calling thread; auto: the stream, unless a waiting stream holds up the others, as " \
    "with CUDA_DEVICE_MAX_CONNECTIONS=1")                                                          \
  U(device_pinned, "MCAST_DEVICE_PINNED", 512 << 20, 65536, 1ull << 40, false, false,              \
    "bytes of pinned host memory that collectives on device tensors of this process may hold at "  \
    "once; a call that would exceed this waits until earlier calls have ended, if there are any")  \
  S(device_failure, "MCAST_DEVICE_FAILURE", "abort", false, false,                                 \
    "what happens if an operation fails after wait() on a device tensor has returned (the stream " \
    "waits then, and nothing raises there): abort: the process ends before anything reads the "    \
    "outputs; raise: the outputs are partly overwritten (NaN, -1) and the next call on that "      \
    "device raises; log: a log line, the outputs are undefined")                                   \
  S(wait, "MCAST_WAIT", "auto", false, false,                                                      \
    "how a thread waits for ranks of its host: auto: it yields its core for 300 us before it "     \
    "sleeps, unless other programs take the core; sleep: it sleeps. With a core per rank both "    \
    "spin for 30 us first")                                                                        \
  U(pin, "MCAST_PIN", 0, 0, 1, false, true,                                                        \
    "1: pin lane threads to CPUs of their own, unless the host has fewer cores than lanes")        \
  U(huge_pages, "MCAST_HUGE_PAGES", 1, 0, 1, false, false,                                         \
    "1: ask for huge pages behind tensors of 4 MiB and more that are sent or received")            \
  D(liveness_limit, "MCAST_LIVENESS_LIMIT", 20000, 100, 86400000, true, true,                      \
    "silence after which a rank counts as dead while an operation is in flight, ms")               \
  D(probe_timeout, "MCAST_PROBE_TIMEOUT", 2000, 10, 600000, true, true,                            \
    "how long to wait for multicast to reach all hosts before the group uses the ring, ms")        \
  U(rate_test, "MCAST_RATE_TEST", 4u << 20, 0, 1u << 30, true, false,                              \
    "bytes that each rank sends to compare unicast with multicast; if unicast is faster, "         \
    "algorithm=auto uses the ring; 0: no test")                                                    \
  D(cutoff, "MCAST_CUTOFF", 2, 0.01, 60000, false, false,                                          \
    "alpha of the cutoff timer: time that announced chunks may be missing before they are "        \
    "fetched, ms")                                                                                 \
  D(linger, "MCAST_LINGER", 5000, 0, 86400000, false, false,                                       \
    "how long a group that ends after an error or interrupt waits for the other ranks to "         \
    "confirm, ms")                                                                                 \
  S(security, "MCAST_SECURITY", "off", true, true,                                                 \
    "off: nothing is authenticated; auth: every datagram and frame is; sealed: encrypted too. "    \
    "Covers traffic between hosts, over sockets or verbs, of this process or of an engine of the " \
    "host that has the secret")                                                                    \
  S(secret_file, "MCAST_SECRET_FILE", "", false, true,                                             \
    "file with the job's secret, as torch-mcast secret new writes it, or /dev/fd/N; wins over "    \
    "the variable MCAST_SECRET, which is removed from the environment once it is read. With "      \
    "engine=host neither is read: the engine has the secret")                                      \
  S(job, "MCAST_JOB", "", false, true,                                                             \
    "name of the job, the same on all its ranks and different from every other job with the same " \
    "secret: the keys of guarded groups depend on it. Empty: TORCHELASTIC_RUN_ID, MASTER_ADDR "    \
    "and MASTER_PORT, or else the address of the store")                                           \
  U(security_mixed, "MCAST_SECURITY_MIXED", 0, 0, 1, false, false,                                 \
    "1: this process may have groups between hosts without security beside guarded ones, and "     \
    "torch's own wrappers, which send unencrypted")                                                \
  U(trust_store, "MCAST_TRUST_STORE", 0, 0, 1, true, true,                                         \
    "1: if the ranks have no secret, rank 0 makes one and passes it on through the store")         \
  S(security_suite, "MCAST_SECURITY_SUITE", "auto", true, true,                                    \
    "auto: aes128gcm if every rank's CPU has AES and carry-less multiply, else chacha20poly1305; " \
    "or the suite to use: aes128gcm, aes256gcm or chacha20poly1305")                               \
  U(source_auth, "MCAST_SOURCE_AUTH", 0, 0, 1, true, false,                                        \
    "1: each root sends a digest of its block to each rank over the connection between the two, "  \
    "and an operation succeeds only if the received block matches it, so no rank can pass off "    \
    "data as another's (docs/security.md). Needs security=auth or sealed")                         \
  S(security_library, "MCAST_SECURITY_LIBRARY", "auto", false, false,                              \
    "auto: ipsec-mb for AES-GCM if it is installed and faster (docs/security.md), libcrypto for "  \
    "the rest; libcrypto: libcrypto for everything, for the rest of the process")                  \
  S(allow, "MCAST_ALLOW", "", false, true,                                                         \
    "networks whose hosts may send to this process, \"10.1.0.0/24,10.2.0.7\"; datagrams of other " \
    "hosts are dropped in the kernel and their connections are refused; empty: any. Sockets "      \
    "only, not verbs")                                                                             \
  S(monitor, "MCAST_MONITOR", "auto", false, true,                                                 \
    "whether refused datagrams and connections are counted by source and reported in the log: "    \
    "auto: if security is not off or allow is set; on; off")                                       \
  S(metrics_file, "MCAST_METRICS_FILE", "", false, false,                                          \
    "file to which torch_mcast.metrics() is written every 10 s, for a collector of Prometheus' "   \
    "text format; empty: none")                                                                    \
  S(debug, "MCAST_DEBUG", "warn", false, false, "log level: off, error, warn, info, trace")

// Default path at which an engine of the host listens.
inline constexpr const char* kDefaultEnginePath = "/run/torch-mcast/engine.sock";

// The setting `engine`.
struct EngineChoice {
  enum class Where : uint8_t { kInProcess, kHost, kAuto } where = Where::kInProcess;
  std::string path = kDefaultEnginePath;

  // False: it is none.
  static bool parse(std::string_view text, EngineChoice& out);
};

// Networks in the setting `allow`, at most.
inline constexpr size_t kMostAllowed = 64;
// Addresses in the setting `aggregators`, at most.
inline constexpr size_t kMostAggregators = 64;

struct Config {
#define MCAST_U(name, env, def, lo, hi, agreed, lane, help) uint64_t name = def;
#define MCAST_D(name, env, def, lo, hi, agreed, lane, help) \
  Nanos name = static_cast<Nanos>((def)*1e6); /* ns */
#define MCAST_S(name, env, def, agreed, lane, help) std::string name = def;
  MCAST_SETTINGS(MCAST_U, MCAST_D, MCAST_S)
#undef MCAST_U
#undef MCAST_D
#undef MCAST_S

  // Not a setting: the group has agreed on IPv6, so an interface that `interface` selects by name
  // is used with its first IPv6 address. Counts as a lane setting.
  bool ipv6 = false;

  // Defaults, then `environment` (name -> value; pass read_environment()), then `overrides`
  // (setting name -> text). Unknown override names, unparsable or out-of-range values:
  // kInvalidArgument that names the setting, the value, where it came from, and what is allowed;
  // the same of settings that do not go together.
  static Result<Config> resolve(const std::map<std::string, std::string>& overrides,
                                const std::map<std::string, std::string>& environment);
  // Checks one value alone: rules about several settings are resolve()'s.
  static Status check_setting(const std::string& name, const std::string& text);
  // The MCAST_* variables of this process.
  static std::map<std::string, std::string> read_environment();

  // Value of one setting as text; durations in ms. Empty optional-like "" for unknown names.
  std::string get(const std::string& name) const;
  // Every setting as text.
  std::map<std::string, std::string> values() const;
  // "name=value ..." of the agreed settings, in table order.
  std::string agreed_text() const;
  // The setting `monitor`: whether what is refused is counted by source.
  bool watches_sources() const {
    return monitor == "on" || (monitor == "auto" && (security != "off" || !allow.empty()));
  }
  // The values of the lane settings: equal for groups that may share lanes.
  std::string lane_key() const;
};

// One row of the table, for docs and validation messages.
struct SettingInfo {
  const char* name;
  const char* env;
  char kind;  // 'U', 'D', 'S'
  std::string default_text;
  double min, max;  // 0, 0 for strings
  bool agreed, lane;
  const char* help;
};
const std::vector<SettingInfo>& setting_table();

}  // namespace mcast
