// A leaf is SHA-256("torch-mcast leaf 1" | its bytes); the digest is SHA-256("torch-mcast block 1"
// | the block's name, length and length of a leaf | all leaves). The two texts keep a leaf from
// being taken for a list of leaves; lengths and order place each byte.
#include "crypto/block_digest.h"

#include <algorithm>

#include "crypto/hash.h"
#include "wire/bytes.h"

namespace mcast::crypto {

void BlockDigest::add(size_t index, ConstBytes block) {
  if (leaves_.empty()) leaves_.resize(left_);
  const size_t at = index * leaf_;
  const ConstBytes run = block.subspan(at, std::min(leaf_, bytes_ - at));
  leaves_[index] = sha256({bytes_of("torch-mcast leaf 1"), run});
  left_--;
}

void BlockDigest::extend(uint64_t end, ConstBytes block) {
  for (; next_ * leaf_ < bytes_ && std::min((next_ + 1) * leaf_, bytes_) <= end; next_++) {
    add(next_, block);
  }
}

Digest BlockDigest::of(const BlockName& name) const {
  wire::Writer head;
  head.put_text("torch-mcast block 1");
  head.put<uint64_t>(name.tag);
  head.put<uint8_t>(name.lane);
  head.put<uint32_t>(name.sequence);
  head.put<uint32_t>(name.descriptor);
  head.put<uint16_t>(name.root);
  head.put<uint64_t>(bytes_);
  head.put<uint64_t>(leaf_);
  return sha256({head.bytes(), std::as_bytes(std::span(leaves_))});
}

}  // namespace mcast::crypto
