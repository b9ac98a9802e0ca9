// Enumeration joins getifaddrs (flags, addresses), SIOCGIFMTU, /proc/net/if_inet6 for the state of
// IPv6 addresses, and /proc/net/route and ipv6_route for the default route with the lowest metric
// (that of IPv4, if there is one). The choice then ranks the usable interfaces: by
// position in an including pattern, or by default route, multicast flag and kind when the pattern
// excludes or is empty.
#include "transport/udp/netif.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/if_addr.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "base/errors.h"
#include "base/ip_address.h"
#include "base/socket_address.h"
#include "base/units.h"
#include "transport/udp/socket.h"

namespace mcast {
namespace {

constexpr unsigned long kRouteUp = 1;  // NOLINT: RTF_UP

// Name of the interface with the best default route of IPv4, or "".
std::string default_route_of_v4() {
  std::ifstream file("/proc/net/route");
  std::string line, best;
  unsigned long best_metric = ~0UL;  // NOLINT: strtoul's type
  std::getline(file, line);          // the header
  while (std::getline(file, line)) {
    // Iface Destination Gateway Flags RefCnt Use Metric Mask ...
    std::istringstream fields(line);
    std::string name, destination, gateway, flags, refs, use, metric, mask;
    if (!(fields >> name >> destination >> gateway >> flags >> refs >> use >> metric >> mask)) {
      continue;
    }
    if (destination != "00000000" || mask != "00000000") continue;
    if ((std::strtoul(flags.c_str(), nullptr, 16) & kRouteUp) == 0) continue;
    const auto value = std::strtoul(metric.c_str(), nullptr, 10);
    if (best.empty() || value < best_metric) {
      best = name;
      best_metric = value;
    }
  }
  return best;
}

std::string default_route_of_v6() {
  std::ifstream file("/proc/thread-self/net/ipv6_route");
  std::string line, best;
  unsigned long best_metric = ~0UL;         // NOLINT: strtoul's type
  constexpr unsigned long kReject = 0x200;  // NOLINT: RTF_REJECT
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string target, prefix, source, source_prefix, hop, metric, refs, use, flags, name;
    if (!(fields >> target >> prefix >> source >> source_prefix >> hop >> metric >> refs >> use >>
          flags >> name)) {
      continue;
    }
    const auto bits = std::strtoul(flags.c_str(), nullptr, 16);
    if (prefix != "00" || (bits & kRouteUp) == 0 || (bits & kReject) != 0) continue;
    const auto value = std::strtoul(metric.c_str(), nullptr, 16);
    if (best.empty() || value < best_metric) {
      best = name;
      best_metric = value;
    }
  }
  return best;
}

std::string default_route_interface() {
  const std::string v4 = default_route_of_v4();
  return v4.empty() ? default_route_of_v6() : v4;
}

// State of the IPv6 addresses of this network namespace (IFA_F_* of linux/if_addr.h), by address;
// empty if it cannot be read.
std::map<IpAddress, unsigned> ipv6_states() {
  std::ifstream file("/proc/thread-self/net/if_inet6");
  std::map<IpAddress, unsigned> states;
  std::string address, index, prefix, scope, flags, name;
  while (file >> address >> index >> prefix >> scope >> flags >> name) {
    IpAddress one;
    for (size_t i = 0; i < one.bytes.size() && address.size() == 32; i++) {
      one.bytes[i] =
          static_cast<uint8_t>(std::strtoul(address.substr(2 * i, 2).c_str(), nullptr, 16));
    }
    states[one] = static_cast<unsigned>(std::strtoul(flags.c_str(), nullptr, 16));
  }
  return states;
}

bool container_bridge(const std::string& name) {
  for (const char* prefix : {"docker", "virbr", "br-", "cni", "lxc", "veth", "podman", "weave",
                             "flannel", "cali", "ovs"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

std::string inventory(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& i : interfaces) {
    if (!text.empty()) text += ", ";
    text += i.name;
    if (i.address.known()) text += " " + i.address.text();
    if (!i.up) text += " (down)";
    if (i.up && !i.address.known()) {
      text += i.link_local
                  ? " (only a link-local IPv6 address; it needs a global or unique local one)"
                  : " (no IP address)";
    }
  }
  return text.empty() ? "none" : text;
}

// The interface that is faster than that of the route; null if there is none, or a speed is not
// known.
const Interface* faster_than_route(const std::vector<Interface>& candidates) {
  const Interface *route = nullptr, *fastest = nullptr;
  for (const Interface& i : candidates) {
    if (!may_choose(i, i.address)) continue;
    if (i.store_route || (i.default_route && route == nullptr)) route = &i;
    if (fastest == nullptr || i.speed > fastest->speed) fastest = &i;
  }
  const bool faster = route != nullptr && route->speed != 0 && fastest->speed > route->speed;
  return faster ? fastest : nullptr;
}

// The first rule that an interface meets decides. Empty stripe: no interface meets one.
InterfaceChoice automatic_choice(const std::vector<Interface>& candidates) {
  if (const Interface* const fastest = faster_than_route(candidates)) {
    return {{*fastest}, "it is the fastest (" + std::to_string(fastest->speed) + " Mbit/s)"};
  }
  struct Rule {
    bool (*meets)(const Interface&);
    const char* reason;
  };
  static constexpr Rule kRules[] = {
      {[](const Interface& i) { return i.store_route; }, "it leads to the store of the job"},
      {[](const Interface& i) { return i.default_route && i.multicast; },
       "it has the default route"},
      {[](const Interface& i) { return !i.loopback && !container_bridge(i.name) && i.multicast; },
       "the first with an address and multicast"},
      {[](const Interface& i) { return i.default_route; },
       "it has the default route (but no MULTICAST flag)"},
      {[](const Interface& i) { return i.loopback; }, "no other interface is usable"}};
  for (const Rule& rule : kRules) {
    const auto it = std::find_if(candidates.begin(), candidates.end(), rule.meets);
    if (it != candidates.end()) return {{*it}, rule.reason};
  }
  return {};
}

// The names in an entry of an exact list.
std::vector<std::string_view> stripe_names(std::string_view entry) {
  std::vector<std::string_view> names;
  for (size_t plus = 0; plus != std::string_view::npos;) {
    plus = entry.find('+');
    names.push_back(entry.substr(0, plus));
    if (plus != std::string_view::npos) entry.remove_prefix(plus + 1);
  }
  return names;
}

// Returns the error of an entry that has a '+', or nullptr.
const char* stripe_fault(const InterfacePattern& pattern, std::string_view entry) {
  if (entry.find('+') == std::string_view::npos) return nullptr;
  if (!pattern.exact || pattern.exclude) return "has a stripe that is not exact";
  std::vector<std::string_view> names = stripe_names(entry);
  std::sort(names.begin(), names.end());
  if (names.front().empty()) return "has an empty name";
  if (std::adjacent_find(names.begin(), names.end()) != names.end()) {
    return "has one name twice in a stripe";
  }
  return nullptr;
}

// Returns the first address of the interface in the network that `entry` names; empty if it names
// no network, or there is no such address.
std::optional<IpAddress> address_in(std::string_view entry, const Interface& interface) {
  const auto networks = parse_networks(entry, 1);
  if (!networks.ok() || networks->empty()) return std::nullopt;
  const auto inside = [&](const IpAddress& address) { return networks->front().contains(address); };
  if (inside(interface.address)) return interface.address;
  const auto it = std::find_if(interface.addresses.begin(), interface.addresses.end(), inside);
  return it == interface.addresses.end() ? std::nullopt : std::optional(*it);
}

// Returns the interface with the address by which `entry` matches it.
Interface as_matched(Interface interface, std::string_view entry) {
  if (const auto address = address_in(entry, interface)) interface.address = *address;
  return interface;
}

std::optional<Interface> find_usable(const std::vector<Interface>& interfaces,
                                     std::string_view entry) {
  for (const Interface& i : interfaces) {
    if (i.usable() && (i.name == entry || address_in(entry, i))) return as_matched(i, entry);
  }
  return std::nullopt;
}

// Speed of the link as the driver reports it, which works in a network namespace whose sysfs is
// another's. Mbit/s; 0 if not known.
uint32_t link_speed(int fd, const std::string& name) {
  // The kernel first reports the number of words of link modes that follow.
  alignas(ethtool_link_settings)
      std::array<char, sizeof(ethtool_link_settings) + 3 * SCHAR_MAX * sizeof(uint32_t)>
          room{};
  auto& asked = *reinterpret_cast<ethtool_link_settings*>(room.data());
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  request.ifr_data = room.data();
  asked.cmd = ETHTOOL_GLINKSETTINGS;
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0 || asked.link_mode_masks_nwords >= 0) return 0;
  asked.link_mode_masks_nwords = static_cast<int8_t>(-asked.link_mode_masks_nwords);
  asked.cmd = ETHTOOL_GLINKSETTINGS;
  if (::ioctl(fd, SIOCETHTOOL, &request) != 0) return 0;
  return asked.speed == static_cast<uint32_t>(SPEED_UNKNOWN) ? 0 : asked.speed;
}

}  // namespace

IpAddress Interface::first_address(bool v6) const {
  const auto it = std::find_if(addresses.begin(), addresses.end(),
                               [v6](const IpAddress& a) { return a.is_v6() == v6; });
  return it == addresses.end() ? IpAddress() : *it;
}

bool may_choose(const Interface& i, const IpAddress& address) {
  if (!i.up || i.loopback || !address.known() || address.link_local()) return false;
  return i.store_route || (i.multicast && !container_bridge(i.name));
}

Result<InterfacePattern> InterfacePattern::parse(std::string_view text) {
  InterfacePattern pattern;
  const std::string whole(text);
  if (!text.empty() && text.front() == '^') {
    pattern.exclude = true;
    text.remove_prefix(1);
  }
  if (!text.empty() && text.front() == '=') {
    pattern.exact = true;
    text.remove_prefix(1);
  }
  if (whole.empty()) return pattern;
  for (const std::string_view name : split_at_commas(text)) {
    const char* const fault = name.empty() ? "has an empty name" : stripe_fault(pattern, name);
    if (fault != nullptr) {
      return Status(Code::kInvalidArgument,
                    "interface pattern \"" + whole + "\" " + fault + " (expected " +
                        "\"eth,ib\", \"=eth0\", \"=eth0+eth1\", \"^docker\", \"^=eth1\", "
                        "\"10.1.0.0/16\" or \"fd00:1::/64\")");
    }
    pattern.names.emplace_back(name);
  }
  return pattern;
}

int InterfacePattern::match(std::string_view name) const {
  for (size_t i = 0; i < names.size(); ++i) {
    if (exact ? name == names[i] : name.substr(0, names[i].size()) == names[i]) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

int InterfacePattern::match(const Interface& interface) const {
  for (size_t i = 0; i < names.size(); ++i) {
    const bool named = exact ? interface.name == names[i]
                             : interface.name.compare(0, names[i].size(), names[i]) == 0;
    if (named || address_in(names[i], interface)) return static_cast<int>(i);
  }
  return -1;
}

uint32_t interface_mtu(int fd, const std::string& name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (::ioctl(fd, SIOCGIFMTU, &request) != 0 || request.ifr_mtu < 0) return 0;
  return static_cast<uint32_t>(request.ifr_mtu);
}

namespace {

struct AssignedAddress {
  IpAddress address;
  uint32_t prefix = 0;
  unsigned state = 0;
};

// The kernel may leave the family of a mask open.
uint32_t prefix_of(const sockaddr* netmask, const IpAddress& address) {
  if (netmask == nullptr) return IpNetwork::single(address).prefix;
  size_t bits = 0;
  const auto count = [&bits](const auto& mask) {
    for (const char byte : std::bit_cast<std::array<char, sizeof mask>>(mask)) {
      bits += static_cast<size_t>(std::popcount(static_cast<unsigned char>(byte)));
    }
  };
  if (address.is_v4()) {
    sockaddr_in mask{};
    std::memcpy(&mask, netmask, sizeof mask);
    count(mask.sin_addr);
  } else {
    sockaddr_in6 mask{};
    std::memcpy(&mask, netmask, sizeof mask);
    count(mask.sin6_addr);
  }
  return static_cast<uint32_t>(bits);
}

// Sorts the usable addresses and chooses the one that counts where none is named.
void adopt_addresses(Interface& i, std::vector<AssignedAddress> all) {
  constexpr unsigned kUnproven = IFA_F_TENTATIVE | IFA_F_DADFAILED;
  std::erase_if(all, [&i](const AssignedAddress& a) {
    const bool local = a.address.is_v6() && a.address.link_local();
    i.link_local = i.link_local || local;
    return local || (a.address.is_v6() && (a.state & kUnproven) != 0);
  });
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    const auto key = [](const AssignedAddress& one) {
      return std::pair(one.address.is_v6(),
                       (one.state & (IFA_F_TEMPORARY | IFA_F_DEPRECATED)) != 0);
    };
    return key(a) < key(b);
  });
  for (const AssignedAddress& a : all) {
    i.addresses.push_back(a.address);
    i.prefixes.push_back(a.prefix);
    if (!i.address.known() || (i.address.link_local() && !a.address.link_local())) {
      i.address = a.address;
    }
  }
}

Interface describe_interface(int fd, const ifaddrs& row, const std::string& default_name) {
  Interface i;
  i.name = row.ifa_name;
  i.index = static_cast<int>(::if_nametoindex(row.ifa_name));
  i.up = (row.ifa_flags & IFF_UP) != 0;
  i.loopback = (row.ifa_flags & IFF_LOOPBACK) != 0;
  i.multicast = (row.ifa_flags & IFF_MULTICAST) != 0;
  i.default_route = i.name == default_name;
  i.mtu = interface_mtu(fd, i.name);
  i.speed = i.up && !i.loopback ? link_speed(fd, i.name) : 0;
  return i;
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0) return Status::system(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(head, ::freeifaddrs);
  auto socket = open_socket(SOCK_DGRAM, IpAddress::v4(INADDR_ANY));
  if (!socket.ok()) return socket.status();

  const std::string default_name = default_route_interface();
  const std::map<IpAddress, unsigned> states = ipv6_states();
  std::vector<Interface> out;
  std::vector<std::vector<AssignedAddress>> assigned;  // as `out`
  for (const ifaddrs* a = head; a != nullptr; a = a->ifa_next) {
    auto it = std::find_if(out.begin(), out.end(), [&](auto& i) { return i.name == a->ifa_name; });
    if (it == out.end()) {
      out.push_back(describe_interface(socket->get(), *a, default_name));
      assigned.emplace_back();
      it = out.end() - 1;
    }
    const IpAddress address = SocketAddress::copy(a->ifa_addr).endpoint().address;
    if (!address.known()) continue;
    const auto state = states.find(address);
    assigned[static_cast<size_t>(it - out.begin())].push_back(
        {address, prefix_of(a->ifa_netmask, address), state == states.end() ? 0 : state->second});
  }
  for (size_t i = 0; i < out.size(); i++) adopt_addresses(out[i], std::move(assigned[i]));
  return out;
}

namespace {

// For an exact list: returns the entry of this lane. Empty if no entry is usable.
Result<std::vector<Interface>> exact_choice(const std::vector<Interface>& interfaces,
                                            const InterfacePattern& pattern, size_t lane) {
  std::vector<std::vector<Interface>> entries;  // usable ones, by lane
  for (const std::string& entry : pattern.names) {
    const auto names = stripe_names(entry);
    std::vector<Interface> stripe;
    for (const std::string_view name : names) {
      if (auto i = find_usable(interfaces, name)) {
        stripe.push_back(std::move(*i));
      } else if (names.size() > 1) {
        return Status(Code::kUnavailable,
                      "stripes over " + std::string(name) +
                          ", which does not exist, is down or has no IP address");
      }
    }
    for (const Interface& i : stripe) {
      if (i.address.is_v4() == stripe[0].address.is_v4()) continue;
      return Status(Code::kUnavailable, "stripes over " + stripe[0].address.text() + " and " +
                                            i.address.text() +
                                            ", of which only one is an IPv4 address");
    }
    if (!stripe.empty()) entries.push_back(std::move(stripe));
  }
  return entries.empty() ? std::vector<Interface>() : entries[lane % entries.size()];
}

// Returns the interfaces that a list of prefixes or exclusions leaves, those of the earliest name
// first.
std::vector<Interface> left_by(const std::vector<Interface>& interfaces,
                               const InterfacePattern& pattern, bool include) {
  std::vector<Interface> usable;
  for (const Interface& i : interfaces) {
    const int at = pattern.match(i);
    if (!i.usable() || (at >= 0) != include) continue;
    usable.push_back(include ? as_matched(i, pattern.names[static_cast<size_t>(at)]) : i);
  }
  std::stable_sort(usable.begin(), usable.end(), [&](const Interface& a, const Interface& b) {
    return pattern.match(a) < pattern.match(b);
  });
  return usable;
}

}  // namespace

Result<InterfaceChoice> choose_interfaces(const std::vector<Interface>& interfaces,
                                          std::string_view text, size_t lane) {
  auto pattern = InterfacePattern::parse(text);
  if (!pattern.ok()) return pattern.status();
  const bool include = !pattern->exclude && !pattern->names.empty();
  const std::string asked = "MCAST_SOCKET_IFNAME=\"" + std::string(text) + "\"";
  const auto unavailable = [&](const std::string& why) {
    return make_error<ErrorId::no_interface>(std::string(text), why, inventory(interfaces));
  };
  InterfaceChoice choice;
  if (include && pattern->exact) {
    auto entry = exact_choice(interfaces, *pattern, lane);
    if (!entry.ok()) return unavailable(entry.status().message());
    choice = {std::move(entry).value(), asked + " matches it"};
  } else {
    std::vector<Interface> left = left_by(interfaces, *pattern, include);
    if (include) {
      left.resize(std::min<size_t>(left.size(), 1));
      choice = {std::move(left), asked + " matches it"};
    } else {
      choice = automatic_choice(left);
      if (!text.empty()) choice.reason = asked + " allows it, and " + choice.reason;
    }
  }
  if (!choice.stripe.empty()) return choice;
  // No interface that matches is usable.
  const bool unusable =
      include && std::any_of(interfaces.begin(), interfaces.end(),
                             [&](const Interface& i) { return pattern->match(i) >= 0; });
  return unavailable(unusable ? "matches only interfaces that are down or have no IP address"
                              : "matches no usable interface");
}

Result<Interface> find_loopback(const std::vector<Interface>& interfaces) {
  for (const Interface& i : interfaces) {
    if (i.loopback && i.usable()) return i;
  }
  return Status(Code::kUnavailable,
                "no loopback interface that is up; this host has: " + inventory(interfaces));
}

}  // namespace mcast
