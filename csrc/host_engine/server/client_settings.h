// Settings that a client of an engine may not choose, or only within limits: the engine resolves
// them in its own process, with its own files and memory.
#pragma once

#include <map>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "runtime/context.h"

namespace mcast::service {

// Maximum number of bytes that a client's setting may make each of its groups keep.
inline constexpr uint64_t kMostKept = uint64_t{256} << 20;

// Removes settings that name files here, or CPUs, or how long remains are waited for.
void drop_local_settings(std::map<std::string, std::string>& settings);
// kResourceExhausted if a setting asks for more memory than that; the error names it.
Status bounded(const Config& config);
// kUnavailable if the engine does not serve this mode of security. (Clients check that before they
// ask: Welcome lists the modes.)
Status served(const Config& config, const EngineContext& engine);

}  // namespace mcast::service
