// /proc/net/snmp has two lines per protocol: the names, then their values in the same order.
#include "transport/udp/ignored.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace mcast {

uint64_t ignored_multicasts() {
  std::ifstream file("/proc/thread-self/net/snmp");
  std::string names, values;
  while (std::getline(file, names) && std::getline(file, values)) {
    if (names.rfind("Udp: ", 0) != 0) continue;
    std::istringstream name_fields(names), value_fields(values);
    std::string name, value;
    while (name_fields >> name && value_fields >> value) {
      if (name == "IgnoredMulti") return std::strtoull(value.c_str(), nullptr, 10);
    }
  }
  return 0;
}

}  // namespace mcast
