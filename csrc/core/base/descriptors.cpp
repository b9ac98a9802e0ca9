// The kernel limits descriptor numbers, not files: it refuses a descriptor when the lowest free
// number is not below the soft limit. Since it assigns the lowest free number, the count of open
// ones shows how far that is.
#include "base/descriptors.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

namespace mcast {
namespace {

uint64_t known(rlim_t limit) { return limit == RLIM_INFINITY ? UINT64_MAX : limit; }

std::string text(uint64_t limit) { return limit == UINT64_MAX ? "none" : std::to_string(limit); }

}  // namespace

DescriptorUse descriptor_use() {
  DescriptorUse use;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    use.soft = known(limit.rlim_cur);
    use.hard = known(limit.rlim_max);
  }
  if (DIR* const dir = ::opendir("/proc/self/fd"); dir != nullptr) {
    while (const dirent* const entry = ::readdir(dir)) {
      if (entry->d_name[0] != '.') use.open++;
    }
    use.open--;  // the descriptor of the listing
    ::closedir(dir);
  } else if (use.soft != UINT64_MAX) {
    use.open = use.soft;  // no descriptor was left, or /proc is missing: assume the worst
  }
  return use;
}

bool make_descriptor_room(uint64_t more) {
  const DescriptorUse use = descriptor_use();
  const uint64_t wanted = std::min(use.hard, use.open + more);
  if (use.soft >= wanted) return false;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = wanted;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

std::string descriptor_text() {
  const DescriptorUse use = descriptor_use();
  return std::to_string(use.open) + " descriptors are open, the limit is " + text(use.soft) +
         " (hard limit " + text(use.hard) +
         "); raise it: ulimit -n, nofile in /etc/security/limits.conf, LimitNOFILE= of a systemd "
         "unit, --ulimit nofile= of a container";
}

}  // namespace mcast
