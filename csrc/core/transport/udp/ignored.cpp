// /proc/net/snmp has two lines per protocol, the names, then their values in the same order;
// /proc/net/snmp6 has a name and a value in each line.
#include "transport/udp/ignored.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace mcast {

namespace {

uint64_t ignored_of_v6() {
  std::ifstream file("/proc/thread-self/net/snmp6");
  std::string name;
  for (uint64_t value = 0; file >> name >> value;) {
    if (name == "Udp6IgnoredMulti") return value;
  }
  return 0;
}

uint64_t ignored_of_v4() {
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

}  // namespace

uint64_t ignored_multicasts() { return ignored_of_v4() + ignored_of_v6(); }

}  // namespace mcast
