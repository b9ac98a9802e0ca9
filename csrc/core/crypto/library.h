// The library behind all primitives of this folder (except ipsec_mb.h): libcrypto of OpenSSL 3,
// loaded when the first guarded group is made, so that a process without one never maps it. It
// stays loaded. Any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace mcast::crypto {

// Loads it at the first call and tests its digests and key derivation; later calls return the same.
// kUnavailable: it is missing, too old, or lacks a function (the message names it). All other
// functions of this folder require an ok() from here first.
Status load_library();

// "OpenSSL 3.0.19 27 Jan 2026, ipsec-mb 1.3.0", or only the first; empty unless load_library() is
// ok.
std::string library_version();

}  // namespace mcast::crypto
