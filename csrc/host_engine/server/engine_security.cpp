// The secret is read once, when the engine starts: another secret needs another engine, which takes
// the socket's place while this one drains. An engine that has a secret serves no group without it
// unless configured to: a job that forgets the setting is refused with an error that names it, and
// does not send plaintext.
#include "host_engine/server/engine_security.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "crypto/secret.h"

namespace mcast::service {

Result<std::shared_ptr<const EngineSecurity>> security_of(const EngineSecurityOptions& options) {
  EngineSecurity made;
  Config config;
  config.secret_file = options.secret_file;
  const bool there = crypto::secret_is_set(config);
  if (!options.modes.empty()) made.modes = options.modes;
  if (options.modes.empty() && there) made.modes = {"auth", "sealed"};
  const std::string modes = made.modes_text();
  if (modes != "off") {
    if (!there) {
      return Status(Code::kInvalidArgument,
                    "option --security " + modes +
                        " needs a secret: --secret-file, MCAST_SECRET_FILE or MCAST_SECRET "
                        "(torch-mcast secret new makes one)");
    }
    auto secret = crypto::find_secret(config);
    if (!secret.ok()) return secret.status();
    made.secret = std::move(secret).value();
  } else if (there) {
    log(LogLevel::kWarn,
        "the engine has a secret, but serves security=off only: nothing is "
        "authenticated; see --security");
  }
  // Not read if a file takes precedence or no group is guarded.
  (void)crypto::drop_secret_of_environment();
  return std::make_shared<const EngineSecurity>(std::move(made));
}

bool read_modes(const std::string& text, std::vector<std::string>& out) {
  out.clear();
  for (const std::string_view mode : split_at_commas(text)) {
    const bool known = mode == "off" || mode == "auth" || mode == "sealed";
    if (!known || std::find(out.begin(), out.end(), mode) != out.end()) return false;
    out.emplace_back(mode);
  }
  return true;
}

std::string in_words(const EngineSecurity& security) {
  if (!security.secret) return "";
  return ", guards groups: security=" + security.modes_text();
}

void tell(Json& json, const EngineSecurity& security) {
  json.key("security").open('{').key("modes").open('[');
  for (const std::string& mode : security.modes) json.value(std::string_view(mode));
  json.close(']').field("secret", security.secret != nullptr).close('}');
}

}  // namespace mcast::service
