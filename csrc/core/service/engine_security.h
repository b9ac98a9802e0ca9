// What an engine of the host is told about security, and what follows from it for its clients'
// groups: keys and guards of these are in the engine's process and nowhere else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "engine/context.h"

namespace mcast::service {

struct EngineSecurityOptions {
  std::string secret_file;  // as the setting of a rank; empty: MCAST_SECRET of the environment
  // Values of the setting `security` that are served. Empty: with a secret "auth" and "sealed",
  // else "off".
  std::vector<std::string> modes;
};

// Reads the secret. Not ok: there is none, or none that can be used, and a mode needs it.
Result<std::shared_ptr<const EngineSecurity>> security_of(const EngineSecurityOptions& options);

// "auth,sealed": modes, each once. False: it is no such list.
bool read_modes(const std::string& text, std::vector<std::string>& out);

// Behind where it listens, for the log; empty: it guards nothing.
std::string in_words(const EngineSecurity& security);
// For the status: "modes", and whether there is a "secret".
void tell(Json& json, const EngineSecurity& security);

}  // namespace mcast::service
