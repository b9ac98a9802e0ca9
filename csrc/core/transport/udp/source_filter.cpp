// Classic BPF: for each network, loads the source address from the IP header word by word, with a
// mask and a comparison for each word that its prefix covers; then the verdict. Loopback's own
// address and the addresses of this host's interfaces are always allowed; otherwise ranks of one
// host could not reach each other.
#include "transport/udp/source_filter.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/config.h"
#include "transport/udp/socket.h"

namespace mcast {
namespace {

// Offsets of the source address in the IP header.
constexpr uint32_t kSourceInV4 = 12, kSourceInV6 = 8;
constexpr uint32_t kPass = 0xffffffff, kDrop = 0;

// The `i`-th 32 bits of the address, in host byte order.
uint32_t word_of(const IpAddress& address, size_t i) {
  uint32_t word = 0;
  for (size_t byte = 4 * i; byte < 4 * i + 4; byte++) word = word << 8 | address.bytes[byte];
  return word;
}

}  // namespace

Result<SourceFilter> SourceFilter::make(const std::string& allow, std::span<const Interface> own) {
  auto networks = parse_networks(allow, kMostAllowed);
  if (!networks.ok()) return networks.status();
  SourceFilter filter;
  if (networks->empty()) return filter;
  filter.networks_ = std::move(networks).value();
  filter.networks_.push_back(IpNetwork::single(IpAddress::v4(INADDR_LOOPBACK)));
  filter.networks_.push_back(IpNetwork::single(*IpAddress::parse("::1")));
  for (const Interface& i : own) {
    for (const IpAddress& a : i.addresses) filter.networks_.push_back(IpNetwork::single(a));
  }
  return filter;
}

bool SourceFilter::passes(const IpAddress& address) const {
  return networks_.empty() ||
         std::any_of(networks_.begin(), networks_.end(),
                     [&address](const IpNetwork& n) { return n.contains(address); });
}

std::vector<sock_filter> SourceFilter::program(bool v6) const {
  std::vector<sock_filter> code;
  for (const IpNetwork& n : networks_) {
    if (n.address.is_v4() == v6) continue;
    const IpAddress mask = n.mask();
    // A word that differs leads to the next network, behind this one's verdict.
    std::vector<size_t> jumps;
    for (size_t word = v6 ? 0 : 3; word < 4; word++) {
      const uint32_t bits = word_of(mask, word);
      if (bits == 0) continue;
      const auto offset = static_cast<uint32_t>(v6 ? kSourceInV6 + 4 * word : kSourceInV4);
      code.push_back(
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_NET_OFF) + offset));
      if (bits != ~uint32_t{0}) code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits));
      jumps.push_back(code.size());
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(n.address, word), 0, 0));
    }
    for (const size_t at : jumps) code[at].jf = static_cast<uint8_t>(code.size() - at);
    code.push_back(BPF_STMT(BPF_RET | BPF_K, kPass));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, kDrop));
  return code;
}

Status SourceFilter::attach(int fd, bool v6) const {
  if (!restricts()) return {};
  std::vector<sock_filter> code = program(v6);
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0) return {};
  return Status::system(errno, "setting allow (MCAST_ALLOW): cannot attach a filter of " +
                                   std::to_string(code.size()) +
                                   " instructions (see net.core.optmem_max)");
}

}  // namespace mcast
