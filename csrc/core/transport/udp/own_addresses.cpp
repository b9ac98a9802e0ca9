// The kernel determines the route: a connected UDP socket sends no packet, but has the source
// address that packets would have. NUMA nodes are read from sysfs by the bus address that the
// driver reports, because /sys/class/net shows the network namespace of the process that mounted
// it.
#include "transport/udp/own_addresses.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>

#include "base/resolve.h"
#include "base/socket_address.h"
#include "base/units.h"
#include "transport/udp/socket.h"

namespace mcast {
namespace {

constexpr size_t kMostAddresses = 32;
constexpr uint16_t kAnyPort = 9;  // no packet is sent to it

// Names are looked up once: a name server that does not respond takes seconds.
std::vector<Endpoint> addresses_of(const std::string& host) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, std::vector<Endpoint>>;
  const std::lock_guard<std::mutex> held(mutex);
  if (const auto it = known->find(host); it != known->end()) return it->second;
  const auto found = resolve_host(host, kAnyPort);
  return (*known)[host] = found.ok() ? *found : std::vector<Endpoint>();
}

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int node_in(const std::string& device) {
  uint16_t node = 0;  // -1, which does not parse, if the device has none
  return read_number(first_line_of(device + "/numa_node"), node) ? node : -1;
}

int node_of(int fd, const std::string& name) {
  ethtool_drvinfo info{};
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&info);
  info.cmd = ETHTOOL_GDRVINFO;
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) return -1;
  const std::string bus(info.bus_info, ::strnlen(info.bus_info, sizeof info.bus_info));
  return bus.empty() ? -1 : node_in("/sys/bus/pci/devices/" + bus);
}

std::vector<int> allowed_cpus() {
  cpu_set_t mask;
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<std::vector<int>> cpus_by_node() {
  std::vector<std::vector<int>> nodes;
  for (const int node : parse_cpu_list(first_line_of("/sys/devices/system/node/online"))) {
    nodes.resize(std::max(nodes.size(), static_cast<size_t>(node) + 1));
    nodes[static_cast<size_t>(node)] = parse_cpu_list(
        first_line_of("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist"));
  }
  return nodes;
}

void mark_near(std::vector<OwnAddress>& addresses) {
  const auto nodes = cpus_by_node();
  if (nodes.size() < 2 || addresses.size() < 2) return;
  const auto allowed = allowed_cpus();
  const auto socket = open_socket(SOCK_DGRAM, IpAddress::v4(INADDR_ANY));
  if (!socket.ok()) return;
  for (OwnAddress& a : addresses) {
    a.near = near_to(node_of(socket->get(), a.interface), allowed, nodes);
  }
}

// Returns false for patterns that name interfaces: they make the choice themselves.
bool leaves_a_choice(const std::string& pattern) { return pattern.empty() || pattern[0] == '^'; }

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string_view range : split_at_commas(text)) {
    const size_t dash = range.find('-');
    uint32_t first = 0, last = 0;
    if (!read_number(range.substr(0, dash), first)) return {};
    last = first;
    if (dash != std::string_view::npos && !read_number(range.substr(dash + 1), last)) return {};
    for (; first <= last && first < CPU_SETSIZE; first++) cpus.push_back(static_cast<int>(first));
  }
  return cpus;
}

bool near_to(int node, const std::vector<int>& allowed,
             const std::vector<std::vector<int>>& nodes) {
  const auto reaches = [&allowed](const std::vector<int>& cpus) {
    return std::any_of(cpus.begin(), cpus.end(), [&allowed](int cpu) {
      return std::find(allowed.begin(), allowed.end(), cpu) != allowed.end();
    });
  };
  const bool everywhere = std::all_of(
      nodes.begin(), nodes.end(), [&](const auto& cpus) { return cpus.empty() || reaches(cpus); });
  if (node < 0 || static_cast<size_t>(node) >= nodes.size() || everywhere) return false;
  return reaches(nodes[static_cast<size_t>(node)]);
}

std::vector<IpAddress> sources_towards(const std::string& host) {
  std::vector<IpAddress> sources;
  if (host.empty()) return sources;
  for (const Endpoint& to : addresses_of(host)) {
    const bool there = std::any_of(sources.begin(), sources.end(), [&to](const IpAddress& a) {
      return a.is_v4() == to.address.is_v4();
    });
    if (there || to.address.loopback()) continue;
    const auto socket = open_socket(SOCK_DGRAM, to.address);
    if (!socket.ok() || connect_to(socket->get(), to) != 0) continue;
    const IpAddress source = local_endpoint(socket->get()).address;
    if (source.known() && !source.loopback()) sources.push_back(source);
  }
  return sources;
}

std::vector<OwnAddress> own_addresses(const std::vector<Interface>& interfaces,
                                      const std::string& pattern, const std::string& store) {
  const std::vector<IpAddress> sources = sources_towards(store);
  const bool choice = leaves_a_choice(pattern);
  const auto parsed = InterfacePattern::parse(pattern);
  if (!parsed.ok()) return {};
  std::vector<Interface> left;
  if (choice) {
    for (const Interface& i : interfaces) {
      if (!parsed->exclude || parsed->match(i) < 0) left.push_back(i);
    }
  } else if (auto chosen = choose_interfaces(interfaces, pattern); chosen.ok()) {
    left.push_back(chosen->stripe.front());
  }
  std::vector<OwnAddress> out;
  for (Interface& i : left) {
    // A name leaves the version open, an address does not.
    const bool by_name = !choice && parsed->match(i.name) >= 0;
    const IpAddress other = by_name ? i.first_address(true) : IpAddress();
    for (size_t n = 0; n < i.addresses.size() && out.size() < kMostAddresses; n++) {
      const IpAddress address = i.addresses[n];
      if (!choice && address != i.address && address != other) continue;
      i.store_route = std::find(sources.begin(), sources.end(), address) != sources.end();
      if (choice && !may_choose(i, address)) continue;
      const bool route = sources.empty() ? i.default_route && address == i.address : i.store_route;
      out.push_back({i.name, address, i.prefixes[n], i.speed, false, route});
    }
  }
  mark_near(out);
  return out;
}

}  // namespace mcast
