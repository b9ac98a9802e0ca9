// Users of this host by name and by number. Asks the system's databases, which may take a while
// where they are on the network. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace mcast {

// The user with this name, else this number; none: `text` is neither.
std::optional<uid_t> find_user(const std::string& text);

// For messages: "user 990 (mcast)", or "user 990" where it has no name here.
std::string user_text(uid_t uid);

}  // namespace mcast
