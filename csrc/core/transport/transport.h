// The transport contract. A transport gives one lane two endpoints with different promises (SC24
// paper section III; docs/transports.md):
//
//   Datagram  multicast to a group: unreliable, unordered, bounded size, sent and received in
//   batches Stream    to one peer: reliable, in order, framed messages
//
// Threads: every call is made by the thread that drives the lane, except wake(). Nothing here
// blocks but wait(). Time is an argument. Errors that concern one peer arrive by
// StreamSink::on_peer_down; anything else is a Status or a counted drop.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/refusal.h"
#include "base/region.h"
#include "base/status.h"
#include "base/types.h"
#include "wire/datagram.h"

namespace mcast {

// A multicast group in transport-neutral form. udp: 239.0.0.0/8 | (group & 0xffffff), `port`;
// verbs: an MGID made of both; sim: compared as is.
struct MulticastAddress {
  uint32_t group = 0;     // low 24 bits used
  uint16_t port = 0;      // 0 is invalid
  bool loopback = false;  // all members share one host: use the loopback interface
  auto operator<=>(const MulticastAddress&) const = default;
};

// Whether what is sent is also delivered on this host, to the sender as well: needed where other
// members share the host. udp only; the other transports know the sender.
enum class Echo : uint8_t { kOff, kOn };

// Where a peer's stream endpoint can be reached, as its own transport printed it; opaque above.
// `uid` tells incarnations of a process apart and is checked when a connection is made.
struct StreamAddress {
  uint64_t uid = 0;
  std::string host;  // udp: numeric IPv4 address; of a stripe, "+address:port" for each further one
  uint16_t port = 0;
  // Public key (X25519) of a guarded endpoint, which proves that it has the private one; zeros: not
  // guarded, or not known.
  std::array<std::byte, 32> key{};
  bool aggregator = false;  // of a guarded endpoint: whose keys it has, a rank's or an aggregator's
  auto operator<=>(const StreamAddress&) const = default;
};

// Index of a peer at this endpoint, dense and stable while the peer is added.
using PeerId = uint32_t;
inline constexpr PeerId kNoPeer = 0xffffffff;

// Streams to one peer are separate per channel, so that bulk repair never delays control.
enum class Channel : uint8_t { kControl = 0, kRepair = 1, kReduce = 2 };
inline constexpr size_t kChannels = 3;
// Largest frame per channel, header included.
inline constexpr size_t kMaxControlFrame = 64 * 1024;
inline constexpr size_t kMaxBulkFrame = 64 * 1024 + 256;

// A stream that a Placer has; of one name there is one at a time.
struct SliceName {
  uint64_t tag = 0;
  Sequence sequence = 0;
  Member member = 0;
  bool operator==(const SliceName&) const = default;
};

// What a device has counted of it and handed to nobody.
struct SliceCounts {
  uint64_t duplicates = 0;  // chunks that were there
  uint64_t misfits = 0;     // of another length than their place has
};

class DatagramSink {
 public:
  virtual ~DatagramSink() = default;
  // `datagram` is the transport's memory, valid during the call only. Not yet verified.
  virtual void on_datagram(ConstBytes datagram) = 0;
  // Of a slice that was placed: chunks word * 64 + i, for each bit i, have come, and their bytes
  // are in its memory. Each once.
  virtual void on_placed(const SliceName&, uint32_t /*word*/, uint64_t /*bits*/) {}
  // What retire() was asked for, and could not say yet.
  virtual void on_retired(const SliceName&, const SliceCounts&) {}
};

struct PlacedStream {
  SliceName name;
  wire::DatagramHeader header;  // of its datagrams, but for `chunk` and `last`
  Slice memory;                 // of the whole stream
  size_t chunk = 0;             // bytes of each but the last, which may be shorter
};

// Placing, an optional capability of a Datagram: a device writes the chunks of streams into memory
// by itself. It looks at the header alone; bytes that the medium has damaged it must not write.
// Datagrams that belong to no slice come as without it.
class Placer {
 public:
  virtual ~Placer() = default;
  // From now on it may write to the memory, which the caller keeps alive. False: there is no room
  // for the slice.
  virtual bool place(const PlacedStream& stream) = 0;
  // No further chunk is written. True: nothing is on its way to the memory either, it may be given
  // back, and the name is free. False: not yet, and on_retired() will say when; on_placed() may
  // still come until then.
  virtual bool retire(const SliceName& name) = 0;
  // For who is about to go: retires it at once, whatever the endpoint's other slices lose by that.
  virtual void revoke(const SliceName& name) = 0;
};

class Datagram {
 public:
  virtual ~Datagram() = default;

  // Largest datagram (header + payload, bytes) that `address` carries without fragmentation, as
  // it was found when the endpoint was opened.
  virtual size_t max_datagram(const MulticastAddress& address) const = 0;
  // Payload bytes that one receive socket can be relied on to queue (bookkeeping overhead taken
  // off).
  virtual size_t receive_budget() const = 0;

  // Starts to receive what is sent to `address`. Counted: join twice, leave twice.
  virtual Status join(const MulticastAddress& address) = 0;
  virtual void leave(const MulticastAddress& address) = 0;

  // Sending. lend() gives the memory of the next datagram of at most `size` bytes to `address`, or
  // an empty span when the transport cannot take one now (try again after the next poll). commit()
  // queues the lent memory, `size` <= lent. Several commits form a batch that leaves when it is
  // full, when `address`, `echo` or the size changes, or at flush(). A datagram may be sent before
  // flush().
  virtual Bytes lend(const MulticastAddress& address, size_t size, Echo echo) = 0;
  Bytes lend(const MulticastAddress& address, size_t size) {
    return lend(address, size, Echo::kOn);
  }
  virtual void commit(size_t size) = 0;
  // Pushes what is queued; false: something is still queued, the medium is full.
  virtual bool flush() = 0;

  // Gathering, an optional capability: a payload that the device takes out of the caller's memory.
  // It pays for blocks of at least so many bytes, since the memory must be registered with the
  // device first; SIZE_MAX: this transport has no such thing.
  virtual size_t gather_from() const { return SIZE_MAX; }
  // Instead of commit(): the first `header` bytes of the lent memory, then `length` bytes from
  // `offset` on of `block`, which is sent piece by piece. False: nothing was queued, the memory is
  // still lent (copy, then commit()). The bytes are read until the datagram has left, of which
  // nobody is told; the transport holds what keeps the memory alive until then. Who writes to it
  // earlier sends a mix of old and new, which a checksum made before finds.
  virtual bool commit_gather(size_t /*header*/, const Slice& /*block*/, size_t /*offset*/,
                             size_t /*length*/) {
    return false;
  }

  // Datagrams that had to leave in fragments, since the medium carries less than max_datagram()
  // now.
  virtual uint64_t fragmented() const { return 0; }
  // Datagrams for addresses that this host has joined, at ports where nobody on it listens, as far
  // as the medium counts them: they take the link, too. A system call; not for every turn.
  virtual uint64_t ignored() const { return 0; }

  // Null: this transport does not place.
  virtual Placer* placer() { return nullptr; }

  // During on_datagram(): where that datagram comes from, if the medium was asked to say so.
  virtual Source source() const { return {}; }
  // The addresses, in host byte order, that datagrams of whoever has this stream endpoint come
  // from; none: source() says nothing that could be compared.
  virtual std::vector<uint32_t> sources_of(const StreamAddress&) const { return {}; }

  // Hands received datagrams to `sink`, at most about `max_bytes` of them. Returns the number
  // handed over; 0 means that the socket was seen empty, and that nothing is on its way from a
  // device into memory.
  virtual size_t receive(DatagramSink& sink, size_t max_bytes) = 0;
};

class StreamSink {
 public:
  virtual ~StreamSink() = default;
  // `frame` is the transport's memory, valid during the call only. Framing is intact; content is
  // not verified.
  virtual void on_frame(PeerId peer, Channel channel, ConstBytes frame) = 0;
  // The process of a peer that was added is gone, refused us, or broke the protocol. Once per peer;
  // sends to it are dropped from then on. `graceful`: it closed after a goodbye (close_peers()).
  virtual void on_peer_down(PeerId peer, const Status& why, bool graceful) = 0;
  // A peer that nobody has added is gone, and with it its id, which another may get.
  virtual void on_stranger_gone(PeerId) {}
  // A connection was not let in.
  virtual void on_refused(Cause, Source) {}
  // The bytes that RemoteMemory::read() asked for; the transport's memory, valid during the call.
  virtual void on_read(PeerId, uint64_t /*token*/, ConstBytes) {}
};

// For an endpoint that is closing: what still arrives has no reader.
class DiscardingSink final : public StreamSink {
 public:
  void on_frame(PeerId, Channel, ConstBytes) override {}
  void on_peer_down(PeerId, const Status&, bool) override {}
};

// What a peer needs to read a part of a block of ours.
struct RemoteGrant {
  uint64_t address = 0;       // of the block's first byte
  size_t first = 0, end = 0;  // bytes of the block that may be read
  uint32_t key = 0;
  // Readable as long as this lives; the memory itself may be gone before, readers then get bytes
  // without meaning.
  std::shared_ptr<void> hold;
};

// One-sided reads, an optional capability of a Stream: bytes of a peer's region arrive without that
// peer's thread (RDMA Read).
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // Lets peers read the piece of `block` that `offset` lies in, and any datagram that begins in it.
  // The piece is registered with the device, its pages pinned, as long as a grant of it lives.
  // kResourceExhausted: no more may be pinned now.
  virtual Result<RemoteGrant> expose(const Slice& block, size_t offset) = 0;
  // Most bytes of one read().
  virtual size_t max_read() const = 0;
  // Reads from a peer's memory; StreamSink::on_read() brings the bytes. False: not now (too many at
  // once, no connection). Reads of a peer that goes down are never answered.
  virtual bool read(PeerId peer, uint64_t address, uint32_t key, size_t length, uint64_t token) = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // What peers must be given to reach this endpoint. `loopback`: for peers on the same host.
  virtual StreamAddress address(bool loopback) const = 0;
  // The id of this address; adds it if new. Connections are made lazily, by the first send.
  virtual PeerId add_peer(const StreamAddress& address) = 0;
  // Instead of add_peer(), for an endpoint that others come to: its peers are these uids, and
  // nobody else gets in. Where each can be reached is learnt when it comes; nothing may be sent to
  // it before. Its key counts, if add_peer() has told one (without a host) before. Before the first
  // poll(); then again where there are more of them. Such an endpoint may go to others besides, by
  // add_peer(). Who comes too early is refused, and tries again for a while. Returns their ids, in
  // this order.
  virtual std::vector<PeerId> expect(std::span<const uint64_t> uids) = 0;
  // Attempts to connect that fail, or that nobody answers, are repeated for the liveness limit;
  // then the peer is down. To this peer they are repeated until `until` if that is later, since the
  // hosts of a group that is being created may become reachable late. 0: the liveness limit again.
  virtual void keep_trying(PeerId peer, Nanos until) = 0;

  // Queues one frame made of `parts`, copied unless the medium takes them at once. Never fails
  // visibly: a broken peer is reported by on_peer_down. Callers bound bulk by queued().
  virtual void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes accepted by send() and not yet by the medium.
  virtual size_t queued(PeerId peer, Channel channel) const = 0;

  // Moves bytes both ways, hands over what arrived. Returns the number of events (0: idle).
  virtual size_t poll(StreamSink& sink, Nanos now) = 0;

  // Says goodbye on all connections and flushes; returns true when nothing is left to send. Call it
  // with time passing until true or the caller's patience ends.
  virtual bool close_peers(Nanos now) = 0;

  // Null: this transport has none.
  virtual RemoteMemory* remote_memory() { return nullptr; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual Datagram& datagram() = 0;
  virtual Stream& stream() = 0;
  // Sleeps until something can be received or sent again, wake() is called, or `timeout` passes.
  virtual void wait(Nanos timeout) = 0;
  // Ends a wait() now or the next one at once. Any thread, async-signal-safe.
  virtual void wake() noexcept = 0;
  // Whether peers can still reach the stream endpoint at its address: false once this host has lost
  // it. Any thread.
  virtual bool has_its_address() const { return true; }
  // In the child of a fork, which may have happened in the middle of another thread's call: closes
  // every descriptor without a word to the peers. wake() may still be called.
  virtual void abandon_after_fork() noexcept = 0;
  // One line for the log: interface, addresses, MTU, buffers granted, offloads.
  virtual std::string describe() const = 0;
};

}  // namespace mcast
