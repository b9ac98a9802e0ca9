// Classic BPF: loads the source address from the IP header, then has a mask and a comparison for
// each network, then the verdict. Loopback's own address and the addresses of this host's
// interfaces are always allowed; otherwise ranks of one host could not reach each other.
#include "transport/udp/source_filter.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/config.h"
#include "transport/udp/socket.h"

namespace mcast {
namespace {

constexpr uint32_t kSourceInIp = 12;  // offset of the source address in the IP header
constexpr uint32_t kPass = 0xffffffff, kDrop = 0;

}  // namespace

Result<SourceFilter> SourceFilter::make(const std::string& allow, std::span<const Interface> own) {
  auto networks = parse_networks(allow, kMostAllowed);
  if (!networks.ok()) return networks.status();
  SourceFilter filter;
  if (networks->empty()) return filter;
  filter.networks_ = std::move(networks).value();
  filter.networks_.push_back({INADDR_LOOPBACK, 32});
  for (const Interface& i : own) {
    filter.networks_.push_back({ntohl(i.address.s_addr), 32});
  }
  return filter;
}

bool SourceFilter::passes(uint32_t address) const {
  return networks_.empty() ||
         std::any_of(networks_.begin(), networks_.end(),
                     [address](const Ipv4Network& n) { return n.contains(address); });
}

std::vector<sock_filter> SourceFilter::program() const {
  std::vector<sock_filter> code;
  for (const Ipv4Network& n : networks_) {
    // The mask changes the accumulator, so the address is loaded again for each network.
    code.push_back(
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_NET_OFF) + kSourceInIp));
    if (n.prefix < 32) code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, n.mask()));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n.address, 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, kPass));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, kDrop));
  return code;
}

Status SourceFilter::attach(int fd) const {
  if (!restricts()) return {};
  std::vector<sock_filter> code = program();
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return {};
  return Status::system(errno, "setting allow (MCAST_ALLOW): cannot attach a filter of " +
                                   std::to_string(code.size()) +
                                   " instructions (see net.core.optmem_max)");
}

}  // namespace mcast
