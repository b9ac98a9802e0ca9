// The hash mixes every field that must agree through a 64-bit finalizer and keeps 32 bits; a
// collision between two different calls is one in 4e9 and then only delays the error to the sizes
// check of the chunks.
#include "wire/descriptor.h"

#include "base/element.h"
#include "base/rng.h"

namespace mcast::wire {

uint32_t Descriptor::hash() const noexcept {
  uint64_t h = mix64(bytes + 0x9e3779b97f4a7c15ULL);
  h = mix64(h ^ (static_cast<uint64_t>(kind) | static_cast<uint64_t>(element) << 8 |
                 static_cast<uint64_t>(root) << 16 | static_cast<uint64_t>(reduction) << 32));
  return static_cast<uint32_t>(h ^ h >> 32);
}

bool Descriptor::same(const Descriptor& o) const noexcept {
  return kind == o.kind && element == o.element && root == o.root && bytes == o.bytes &&
         reduction == o.reduction;
}

std::string Descriptor::to_string() const {
  std::string text = name.empty() ? kind_name(kind) : name;
  text += '(';
  if (kind != Kind::kBarrier) {
    const bool sized = kind != Kind::kAllToAll;
    if (sized) text += std::to_string(bytes) + " bytes";
    if (element != 0xff)
      text += (sized ? ", element type " : "element type ") + std::to_string(element);
  }
  if (reduction != 0) text += std::string(", ") + reduction_name(static_cast<Reduction>(reduction));
  if (is_rooted(kind)) text += ", root " + std::to_string(root);
  return text + ")";
}

void put_descriptor(Writer& out, const Descriptor& d) {
  out.put<uint8_t>(static_cast<uint8_t>(d.kind));
  out.put<uint8_t>(d.element);
  out.put<uint8_t>(d.reduction);
  out.put<uint16_t>(d.root);
  out.put<uint64_t>(d.bytes);
  out.put_text(std::string_view(d.name).substr(0, 64));
}

bool parse_descriptor(ConstBytes body, Descriptor& d) {
  Reader in(body);
  const auto kind = in.get<uint8_t>();
  d.element = in.get<uint8_t>();
  d.reduction = in.get<uint8_t>();
  d.root = in.get<uint16_t>();
  d.bytes = in.get<uint64_t>();
  if (!in.ok() || kind < 1 || kind > kKindMax || in.remaining() > 64) return false;
  d.kind = static_cast<Kind>(kind);
  d.name = std::string(in.rest_text());
  return true;
}

}  // namespace mcast::wire
