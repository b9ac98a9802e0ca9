// The reentrant calls say ERANGE when an entry is longer than the buffer.
#include "base/users.h"

#include <pwd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "base/units.h"

namespace mcast {
namespace {

constexpr size_t kMostEntry = size_t{1} << 20;  // bytes

// `look` is getpwnam_r() or getpwuid_r() with its first argument.
template <typename Look, typename Use>
bool with_entry(Look&& look, Use&& use) {
  for (std::vector<char> room(1024);; room.resize(room.size() * 2)) {
    passwd entry{};
    passwd* found = nullptr;
    const int error = look(&entry, room.data(), room.size(), &found);
    if (error == ERANGE && room.size() < kMostEntry) continue;
    if (error != 0 || found == nullptr) return false;
    use(*found);
    return true;
  }
}

}  // namespace

std::optional<uid_t> find_user(const std::string& text) {
  uid_t uid = 0;
  const bool named = with_entry([&](auto... rest) { return ::getpwnam_r(text.c_str(), rest...); },
                                [&](const passwd& entry) { uid = entry.pw_uid; });
  // The last number is no user's: chown() takes it for "as it is".
  if (named || read_number(text, uid, UINT32_MAX - 1)) return uid;
  return std::nullopt;
}

std::string user_text(uid_t uid) {
  std::string text = "user " + std::to_string(uid);
  with_entry([&](auto... rest) { return ::getpwuid_r(uid, rest...); },
             [&](const passwd& entry) { text += std::string(" (") + entry.pw_name + ")"; });
  return text;
}

}  // namespace mcast
