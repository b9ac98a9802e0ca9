// Decides which groups are served: reads an ask and compares it with the resources that the process
// may use. Pure.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "aggregation/fold/job_params.h"
#include "aggregation/server/options.h"
#include "wire/admission.h"

namespace mcast::service {

// Reasons for refusing a group. Names are stable: the asker and the status page show them.
#define MCAST_REFUSALS(X)                                        \
  X(version, "another version of torch-mcast")                   \
  X(malformed, "no request, or one with impossible values")      \
  X(network, "from a host that is not in --allow")               \
  X(security, "another security mode, or a wrong proof")         \
  X(transport, "a transport that does not work here")            \
  X(jobs, "the limit of --jobs is reached")                      \
  X(quota, "more memory than --quota or --quota-per-job allows") \
  X(descriptors, "more connections than this process may open")  \
  X(draining, "this aggregator is about to end")                 \
  X(system, "threads or sockets could not be created")

enum class AskRefusal : uint8_t {
#define MCAST_REFUSAL_ENUM(name, help) name,
  MCAST_REFUSALS(MCAST_REFUSAL_ENUM)
#undef MCAST_REFUSAL_ENUM
      kCount
};
inline constexpr size_t kRefusals = static_cast<size_t>(AskRefusal::kCount);
const char* ask_refusal_name(AskRefusal why) noexcept;

struct Rejection {
  AskRefusal why = AskRefusal::malformed;
  std::string text;
};

// Checks the version in an ask's heading (wire::ask_heading); empty if the version is ours, or the
// heading has none.
std::optional<Rejection> other_version(const wire::Ask& heading);
// Reads a record that is the first of its connection and has our version.
std::variant<wire::Ask, Rejection> read_ask(std::string_view record);

// Resources granted to jobs.
struct InUse {
  uint32_t jobs = 0;
  uint64_t quota = 0;        // bytes
  uint64_t descriptors = 0;  // that they may need at most
};

struct Grant {
  // `id`, `self` and `deadline` are the caller's to set.
  aggregation::JobParams params;
  uint64_t quota = 0;        // bytes, for all stations of the job
  uint64_t descriptors = 0;  // of all its stations
  uint32_t capacity = 0;     // of a station, 1/65536 of a rank's link
};

// `most_descriptors`: maximum number that the process may ever have open.
std::variant<Grant, Rejection> admit(const wire::Ask& ask, const Options& options,
                                     const InUse& used, uint64_t most_descriptors);

// Capacity of each of `stations` stations, in 1/65536 of a rank's link; at least 1.
uint32_t station_capacity(uint64_t rate, uint64_t link_rate, uint32_t stations);

}  // namespace mcast::service
