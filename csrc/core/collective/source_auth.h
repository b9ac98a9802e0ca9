// SourceAuth: with the setting `source_auth`, each receiver of a block compares it with the digest
// that the root sends over their stream, before the operation ends. Every rank has the keys of the
// group's datagrams, and forwards repairs and the ring's data, so only the digest proves the origin
// of the bytes.
//
// Threads: the lane's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collective/group_context.h"
#include "crypto/block_digest.h"

namespace mcast {

class SourceAuth {
 public:
  explicit SourceAuth(GroupContext& context) : g_(context) {}

  // Called when an operation with blocks begins, before any data of it is placed.
  void start(const Operation& op);
  // The first `end` bytes of our own block have been sent. The digest is sent after the last ones.
  void on_sent(const Operation& op, uint64_t end);
  // on_chunk: a chunk of another root's block has been placed. on_bytes: on the ring, its first
  // `end` bytes have.
  void on_chunk(const Operation& op, uint32_t stream, Chunk chunk);
  void on_bytes(const Operation& op, uint32_t stream, uint64_t end);
  // True once all blocks of others are here and match the digests of their roots.
  bool verified(const Operation& op) const;
  // At the operation's time limit: fails the group and returns true if its data is here and digests
  // are missing.
  bool fail_without_digest(Sequence sequence);
  // An operation has passed its time limit elsewhere. If it waits for digests here, its limit is
  // brought forward, so that the error says so.
  void on_query(Sequence sequence, Nanos now);
  // The operation has ended.
  void end(const Operation& op) { checks_.erase(op.post.sequence); }

  using Frame = wire::FrameHeader;
  // A root's digest. The operation must be in flight here; before its post, the frame is kept
  // elsewhere.
  void on_digest(const Operation& op, const Frame& header, ConstBytes body);

 private:
  struct Block {
    crypto::BlockDigest here;
    std::optional<crypto::Digest> sent;  // by its root
  };
  struct Check {
    std::vector<Block> blocks;  // by stream
    uint32_t missing = 0;       // blocks of others that have not been compared
  };

  bool on() const { return g_.params.agreed.source_auth; }
  crypto::Digest digest(const Operation& op, uint32_t stream,
                        const crypto::BlockDigest& block) const;
  // Roots whose digests an operation waits for, if its data is here.
  std::vector<Member> missing(const Operation& op) const;
  void send(const Operation& op, const crypto::BlockDigest& block);
  void compare(const Operation& op, Check& check, uint32_t stream);

  GroupContext& g_;
  std::map<Sequence, Check> checks_;  // operations in flight
};

}  // namespace mcast
