// Links are numbered plane by plane, level by level, and within a level by (block below, column,
// parallel link), so that a link's number follows from its place. Only a star grows: its links are
// of one level and one plane, where a new host's link is the next number.
#include "sim/network/topology.h"

#include <algorithm>
#include <charconv>

namespace mcast::sim {

namespace {

uint32_t parts_of(uint32_t whole, uint32_t part) { return (whole + part - 1) / part; }

Status bad_topology(const std::string& why) {
  return Status(Code::kInvalidArgument, "topology: " + why);
}

constexpr uint64_t kMostLinks = 1u << 24;  // of one direction, in all planes

// Number of links of a specification whose fields are within bounds.
uint64_t links_of(const TopologySpec& spec) {
  uint64_t links = spec.hosts;
  if (spec.kind == TopologySpec::Kind::kLeafSpine) {
    links += uint64_t{spec.leaves} * spec.spines * spec.links;
  } else if (spec.kind == TopologySpec::Kind::kFatTree) {
    const uint64_t half = spec.radix / 2, pod = spec.pod > 0 ? spec.pod : half * half;
    links += (spec.hosts + half - 1) / half * half;
    links += (spec.hosts + pod - 1) / pod * (spec.cores > 0 ? spec.cores : half * half);
  }
  return links * spec.planes;
}

uint32_t* field_of(TopologySpec& spec, std::string_view name) {
  using Kind = TopologySpec::Kind;
  if (name == "planes") return &spec.planes;
  if (spec.kind == Kind::kLeafSpine) {
    if (name == "leaves") return &spec.leaves;
    if (name == "spines") return &spec.spines;
    if (name == "links") return &spec.links;
  }
  if (spec.kind == Kind::kFatTree) {
    if (name == "radix") return &spec.radix;
    if (name == "pod") return &spec.pod;
    if (name == "cores") return &spec.cores;
  }
  return nullptr;
}

}  // namespace

Result<TopologySpec> TopologySpec::parse(std::string_view text, uint32_t hosts) {
  TopologySpec spec;
  spec.hosts = hosts;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  if (kind == "leafspine") {
    spec.kind = Kind::kLeafSpine;
  } else if (kind == "fattree") {
    spec.kind = Kind::kFatTree;
  } else if (kind != "star") {
    return bad_topology("\"" + std::string(kind) + "\" is not one of star, leafspine, fattree");
  }
  std::string_view rest = text.substr(std::min(colon + 1, text.size()));
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = std::min(item.find('='), item.size());
    uint32_t* const field = field_of(spec, item.substr(0, equals));
    if (field == nullptr) {
      return bad_topology("\"" + std::string(item) + "\" is not a parameter of " +
                          std::string(kind));
    }
    const std::string_view value = item.substr(std::min(equals + 1, item.size()));
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), *field);
    if (error != std::errc() || stop != value.data() + value.size()) {
      return bad_topology("\"" + std::string(item) + "\" needs a whole number");
    }
  }
  if (Status status = spec.check(); !status.ok()) return status;
  return spec;
}

Status TopologySpec::check() const {
  if (planes < 1 || planes > 64) return bad_topology("planes must be 1 to 64");
  if (kind == Kind::kStar) {
    if (hosts == 0 && planes > 1)
      return bad_topology("a star of several planes needs a number of hosts");
    return {};
  }
  if (hosts < 1) return bad_topology("no hosts");
  constexpr uint32_t kMost = 65'536;
  if (std::max({leaves, spines, links, radix, pod, cores}) > kMost) {
    return bad_topology("a number is above " + std::to_string(kMost));
  }
  if (kind == Kind::kLeafSpine) {
    if (leaves < 1 || spines < 1 || links < 1) {
      return bad_topology("leafspine needs leaves, spines and links of at least 1");
    }
  } else if (radix < 2 || radix % 2 != 0) {
    return bad_topology("fattree needs an even radix");
  } else if (pod % (radix / 2) != 0) {
    return bad_topology("pod must be a multiple of radix / 2 hosts (whole leaves)");
  }
  if (links_of(*this) > kMostLinks) {
    return bad_topology("it has more than " + std::to_string(kMostLinks) + " links");
  }
  return {};
}

Topology::Topology(const TopologySpec& spec) : spec_(spec) {
  using Kind = TopologySpec::Kind;
  const uint32_t half = spec.radix / 2;
  levels_ = spec.kind == Kind::kStar ? 1 : spec.kind == Kind::kLeafSpine ? 2 : 3;
  span_ = {1, UINT32_MAX, UINT32_MAX, UINT32_MAX};
  columns_ = {0, 1, 1, 1};
  parallel_ = {1, 1, 1, 1};
  if (spec.kind == Kind::kLeafSpine) {
    span_[1] = parts_of(spec.hosts, spec.leaves);
    columns_[2] = spec.spines;
    parallel_[2] = spec.links;
  } else if (spec.kind == Kind::kFatTree) {
    span_[1] = half;
    span_[2] = spec.pod > 0 ? spec.pod : half * half;
    columns_[2] = half;
    columns_[3] = spec.cores > 0 ? spec.cores : half * half;
  }
  blocks_[0] = spec.hosts;
  for (unsigned l = 1; l <= levels_; l++) {
    blocks_[l] = l == levels_ ? 1 : parts_of(spec.hosts, span_[l]);
    first_link_[l] = links_per_plane_;
    links_per_plane_ += blocks_[l - 1] * columns_[l] * parallel_[l];
    first_switch_[l] = switches_per_plane_;
    switches_per_plane_ += blocks_[l] * columns_[l];
  }
  for (unsigned p = 0; p < spec.planes; p++) lay_links(p);
}

void Topology::lay_links(unsigned plane) {
  for (unsigned l = 1; l <= levels_; l++) {
    for (uint32_t child = 0; child < blocks_[l - 1]; child++) {
      for (uint32_t i = 0; i < columns_[l] * parallel_[l]; i++) {
        Link link{static_cast<uint16_t>(plane), static_cast<uint8_t>(l), true, child,
                  i / parallel_[l]};
        links_.push_back(link);
        link.up = false;
        links_.push_back(link);
      }
    }
  }
}

HostId Topology::grow() {
  const HostId host = spec_.hosts++;
  blocks_[0] = spec_.hosts;
  links_per_plane_++;
  Link link;
  link.child = host;
  links_.push_back(link);
  link.up = false;
  links_.push_back(link);
  return host;
}

unsigned Topology::cover(HostId low, HostId high) const {
  unsigned level = 1;
  while (level < levels_ && block_of(level, low) != block_of(level, high)) level++;
  return level;
}

LinkId Topology::up_link(unsigned plane, unsigned level, uint32_t child, uint32_t column,
                         uint32_t parallel) const {
  const uint32_t place = (child * columns_[level] + column) * parallel_[level] + parallel;
  return 2 * (plane * links_per_plane_ + first_link_[level] + place);
}

Switch Topology::upper(const Link& link) const {
  const uint32_t block = link.level == levels_
                             ? 0
                             : static_cast<uint32_t>(uint64_t{link.child} * span_[link.level - 1u] /
                                                     span_[link.level]);
  return {link.plane, link.level, block, link.column};
}

Switch Topology::lower(const Link& link) const {
  return {link.plane, static_cast<uint8_t>(link.level - 1), link.child,
          below(link.level, link.column)};
}

uint32_t Topology::id(const Switch& s) const {
  return s.plane * switches_per_plane_ + first_switch_[s.level] + s.block * columns_[s.level] +
         s.column;
}

std::string Topology::class_name(const Link& link) const {
  static constexpr const char* kTwo[] = {"host", "leaf", "spine", ""};
  static constexpr const char* kThree[] = {"host", "leaf", "pod", "core"};
  const auto& names = levels_ == 3 ? kThree : kTwo;
  return std::string(names[link.level - 1u]) + "-" + names[link.level] +
         (link.up ? " up" : " down");
}

}  // namespace mcast::sim
