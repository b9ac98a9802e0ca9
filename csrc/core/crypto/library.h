// The library behind all primitives of this folder (but see ipsec_mb.h): libcrypto of OpenSSL 3,
// loaded when the first guarded group is made, so that a process without one never maps it. It
// stays loaded. Any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace mcast::crypto {

// Loads it at the first call and tries its digests and key derivation; later calls return the same.
// kUnavailable: it is not there, too old, or lacks something (the message names it). Everything
// else of this folder needs an ok() from here before.
Status load_library();

// "OpenSSL 3.0.19 27 Jan 2026, ipsec-mb 1.3.0", or the former alone; empty unless load_library() is
// ok.
std::string library_version();

}  // namespace mcast::crypto
