// Version of this build.
#pragma once

namespace mcast {

// "0.1.0"; part of the rendezvous record.
const char* version() noexcept;

}  // namespace mcast
