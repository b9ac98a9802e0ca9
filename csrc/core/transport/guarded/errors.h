// Error and log texts of guarded connections, for every carrier. `who`: name of the other end, as
// users read it.
#pragma once

#include <string>

#include "base/status.h"

namespace mcast::guarded {

// Two processes have proved the secret, with different keys (learn()).
Status two_keys(const std::string& who);
// Logs that an impostor was refused.
void log_impostor(const std::string& who);

// The other end did not send the first message.
Status no_challenge();
// The other end ended the connection before the handshake was over.
Status ended_early();
// A connection cannot be made guarded, for reason `why`.
Status cannot_guard(const std::string& who, const Status& why);
// A record of the connection does not open.
Status record_forged(const std::string& who);
// The keys of the connection are used up.
Status keys_used_up(const std::string& who);

}  // namespace mcast::guarded
