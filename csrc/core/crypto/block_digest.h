// Digest of one block of an operation, which its root sends to each receiver over their own stream
// (docs/security.md#source-authentication): a tree of SHA-256 with one level of leaves. A leaf is a
// run of fixed length, so that runs can be hashed in any order, each as soon as it is there.
//
// Pure. Not thread-safe. Needs an ok() of load_library().
#pragma once

#include <vector>

#include "base/types.h"
#include "crypto/key.h"

namespace mcast::crypto {

// The block: what the digest covers besides its bytes, so that it fits no other one.
struct BlockName {
  uint64_t tag = 0;  // of the group
  uint8_t lane = 0;
  Sequence sequence = 0;
  uint32_t descriptor = 0;
  Member root = 0;
};

class BlockDigest {
 public:
  // A block of `bytes`, of which a leaf has `leaf`, the last one less; both > 0.
  BlockDigest(size_t bytes, size_t leaf)
      : bytes_(bytes), leaf_(leaf), left_((bytes + leaf - 1) / leaf) {}

  // All bytes of leaf `index` are there. Once for each leaf, in any order.
  void add(size_t index, ConstBytes block);
  // The first `end` bytes of the block are there: adds the leaves that this completes. Not together
  // with add().
  void extend(uint64_t end, ConstBytes block);
  bool complete() const { return left_ == 0; }
  // The digest; the block must be complete().
  Digest of(const BlockName& name) const;

 private:
  size_t bytes_, leaf_;
  size_t left_;      // leaves that are not hashed
  size_t next_ = 0;  // extend(): leaves below are
  std::vector<Digest> leaves_;
};

}  // namespace mcast::crypto
