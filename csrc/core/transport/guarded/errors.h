// What is said of guarded connections, whatever carries them. `who`: the other end, for people.
#pragma once

#include <string>

#include "base/status.h"

namespace mcast::guarded {

// Two processes have shown the secret, and not the same key (learn()).
Status two_keys(const std::string& who);
// Says in the log that an impostor was refused.
void log_impostor(const std::string& who);

// Why there is no connection where the other end does not say the first word.
Status no_challenge();
// Why there is none where it ends the connection.
Status ended_early();
// Of a connection that cannot be made guarded, for this reason.
Status cannot_guard(const std::string& who, const Status& why);
// Of one whose record does not open.
Status record_forged(const std::string& who);
// Of one whose keys are used up.
Status keys_used_up(const std::string& who);

}  // namespace mcast::guarded
