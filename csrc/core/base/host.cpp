// The kernel makes a boot id once per boot, and a network namespace is identified by the device and
// inode of its file in nsfs; together they identify the processes that can be reached over
// loopback. Containers see the boot id of their machine, so that alone would treat two of them as
// one host. A machine id would not do either: cloned images share it.
#include "base/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "base/random.h"

namespace mcast {
namespace {
constexpr const char* kUnknown = "unknown/";
}  // namespace

std::string host_id_from(const char* boot_id_path, const char* net_namespace_path) {
  std::string boot_id;
  std::ifstream file(boot_id_path);
  if (!(file >> boot_id)) return "";
  struct stat info {};
  if (::stat(net_namespace_path, &info) != 0) return "";
  return boot_id + "/" + std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

std::string host_id() {
  std::string id = host_id_from("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net");
  if (!id.empty()) return id;
  // The process id distinguishes a forked child, which inherits the number, from its parent.
  static const uint64_t number = secure_random64();
  return kUnknown + std::to_string(number) + ":" + std::to_string(::getpid());
}

bool host_known(const std::string& id) { return id.rfind(kUnknown, 0) != 0; }

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string job_salt() {
  const char* run = std::getenv("TORCHELASTIC_RUN_ID");
  const char* address = std::getenv("MASTER_ADDR");
  const char* port = std::getenv("MASTER_PORT");
  if (run == nullptr && address == nullptr && port == nullptr) return "";
  const auto text = [](const char* value) { return std::string(value != nullptr ? value : ""); };
  return text(run) + "|" + text(address) + "|" + text(port);
}

}  // namespace mcast
