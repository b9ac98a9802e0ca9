// Settings that a client of an engine may not choose, or not as it likes: the engine resolves them
// in its own process, with its own files and memory.
#pragma once

#include <map>
#include <string>

#include "base/config.h"
#include "base/status.h"
#include "engine/context.h"

namespace mcast::service {

// What a setting of a client may make each of its groups keep, bytes.
inline constexpr uint64_t kMostKept = uint64_t{256} << 20;

// Takes out what names files here, or CPUs, or how long leftovers are waited for.
void drop_local_settings(std::map<std::string, std::string>& settings);
// kResourceExhausted: more memory than that, and by which setting.
Status bounded(const Config& config);
// kUnavailable: a mode of security that the engine does not serve. (Clients look at that before
// they ask: Welcome has told them.)
Status served(const Config& config, const EngineContext& engine);

}  // namespace mcast::service
