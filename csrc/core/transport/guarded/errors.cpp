// One wording for all carriers, including the simulated one, which has neither their addresses nor
// their messages.
#include "transport/guarded/errors.h"

#include "base/log.h"

namespace mcast::guarded {

Status two_keys(const std::string& who) {
  return Status(Code::kPeerLost, "two processes claim to be " + who +
                                     ": one has connected, another has published its key");
}

void log_impostor(const std::string& who) {
  log(LogLevel::kWarn, "two processes claim to be %s: a connection was refused", who.c_str());
}

Status no_challenge() {
  return Status(Code::kPeerLost,
                "it did not ask for a proof in time: is it stopped, or is its security off?");
}

Status ended_early() {
  return Status(
      Code::kPeerLost,
      "it ended the handshake: it has another secret, or somebody has changed its messages");
}

Status cannot_guard(const std::string& who, const Status& why) {
  return Status(Code::kPeerLost,
                "cannot make a guarded connection to " + who + ": " + why.message());
}

Status record_forged(const std::string& who) {
  return Status(Code::kPeerLost,
                who +
                    " seems to have sent a record that cannot be verified: somebody "
                    "has changed it on the way");
}

Status keys_used_up(const std::string& who) {
  return Status(Code::kResourceExhausted, "the keys of the connection to " + who + " are used up");
}

}  // namespace mcast::guarded
