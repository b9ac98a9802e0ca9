// Security options of a host engine, and their result for its clients' groups: the keys and guards
// of these groups exist in the engine's process only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "runtime/context.h"

namespace mcast::service {

struct EngineSecurityOptions {
  std::string secret_file;  // like the setting of a rank; empty: MCAST_SECRET of the environment
  // Values of the setting `security` that are served. Empty: with a secret "auth" and "sealed",
  // otherwise "off".
  std::vector<std::string> modes;
};

// Reads the secret. Returns an error if a mode needs it and it is missing or unusable.
Result<std::shared_ptr<const EngineSecurity>> security_of(const EngineSecurityOptions& options);

// "auth,sealed": modes, each once. Returns false if the text is not such a list.
bool read_modes(const std::string& text, std::vector<std::string>& out);

// Text for the log, behind the listening address; empty if it guards no groups.
std::string in_words(const EngineSecurity& security);
// Adds to the status: "modes", and whether there is a "secret".
void tell(Json& json, const EngineSecurity& security);

}  // namespace mcast::service
