// The transport contract. A transport gives one lane two endpoints with different promises (SC24
// paper section III; docs/transports.md):
//
//   Datagram  multicast to a group: unreliable, unordered, bounded size, in batches
//   Stream    to one peer: reliable, in order, framed messages
//
// Threads: every call is made by the thread that drives the lane, except wake(). Only wait()
// blocks. Time is an argument. Errors that concern one peer are reported by
// StreamSink::on_peer_down; any other error is a Status or a counted drop.
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

// A multicast group in transport-neutral form. udp: 239.0.0.0/8 | (group & 0xffffff), on lanes of
// IPv6 ff15::6d63:6173:7400:0 | (group & 0xffffff), and `port`; verbs: an MGID derived from both;
// sim: compared unchanged.
struct MulticastAddress {
  uint32_t group = 0;     // low 24 bits used
  uint16_t port = 0;      // 0 is invalid
  bool loopback = false;  // all members share one host: use the loopback interface
  auto operator<=>(const MulticastAddress&) const = default;
};

// Whether sent datagrams are also delivered on this host, to the sender as well: needed if other
// members share the host. udp only; the other transports know the sender.
enum class Echo : uint8_t { kOff, kOn };

// Address of a peer's stream endpoint, in the form that its own transport printed; opaque to the
// layers above. `uid` distinguishes incarnations of a process and is checked when a connection is
// made.
struct StreamAddress {
  uint64_t uid = 0;
  std::string host;  // udp: numeric address; on a stripe, "+address:port" for each further one
  uint16_t port = 0;
  // Public key (X25519) of a guarded endpoint, which proves that it has the private key; zeros: not
  // guarded, or not known.
  std::array<std::byte, 32> key{};
  bool aggregator = false;  // guarded endpoint with an aggregator's keys, not a rank's
  auto operator<=>(const StreamAddress&) const = default;
};

// Index of a peer at this endpoint, dense and stable while the peer is added.
using PeerId = uint32_t;
inline constexpr PeerId kNoPeer = 0xffffffff;

// Streams to one peer are separate per channel, so that bulk repair does not delay control frames.
enum class Channel : uint8_t { kControl = 0, kRepair = 1, kReduce = 2 };
inline constexpr size_t kChannels = 3;
// Largest frame per channel, including its header.
inline constexpr size_t kMaxControlFrame = 64 * 1024;
inline constexpr size_t kMaxBulkFrame = 64 * 1024 + 256;

// Name of a stream in a Placer; unique while the stream is there.
struct SliceName {
  uint64_t tag = 0;
  Sequence sequence = 0;
  Member member = 0;
  bool operator==(const SliceName&) const = default;
};

// Chunks of a slice that a device counted and did not deliver.
struct SliceCounts {
  uint64_t duplicates = 0;  // chunks that were delivered before
  uint64_t misfits = 0;     // chunks of a length that differs from their place's
};

class DatagramSink {
 public:
  virtual ~DatagramSink() = default;
  // `datagram` is the transport's memory, valid during the call only. Not verified yet.
  virtual void on_datagram(ConstBytes datagram) = 0;
  // Reports placed chunks of a slice: for each bit i, chunk word * 64 + i has arrived, and its
  // bytes are in the slice's memory. Each chunk is reported once.
  virtual void on_placed(const SliceName&, uint32_t /*word*/, uint64_t /*bits*/) {}
  // The counts requested by retire(), if it could not return them.
  virtual void on_retired(const SliceName&, const SliceCounts&) {}
};

struct PlacedStream {
  SliceName name;
  wire::DatagramHeader header;  // of its datagrams, except `chunk` and `last`
  Slice memory;                 // of the whole stream
  size_t chunk = 0;             // bytes of each chunk except the last, which may be shorter
};

// Placing, an optional capability of a Datagram: a device writes the chunks of streams into memory
// by itself. It looks at the header only; it must not write bytes that the medium has damaged.
// Datagrams that belong to no slice are delivered as without placing.
class Placer {
 public:
  virtual ~Placer() = default;
  // From now on the device may write to the memory, which the caller keeps alive. Returns false if
  // there is no room for the slice.
  virtual bool place(const PlacedStream& stream) = 0;
  // Stops the writing of further chunks. Returns true if no chunk is on its way to the memory
  // either: the memory may be released, and the name is free. Returns false if not yet:
  // on_retired() reports it later, and on_placed() may still be called until then.
  virtual bool retire(const SliceName& name) = 0;
  // For a caller that is about to end: retires the slice immediately, whatever loss this causes for
  // the endpoint's other slices.
  virtual void revoke(const SliceName& name) = 0;
};

class Datagram {
 public:
  virtual ~Datagram() = default;

  // Largest datagram (header + payload, bytes) that `address` carries without fragmentation, as
  // determined when the endpoint was opened.
  virtual size_t max_datagram(const MulticastAddress& address) const = 0;
  // Bytes of the IP and UDP headers before a datagram, for people who compare packets with an MTU.
  virtual size_t header_bytes() const { return 28; }
  // Payload bytes that one receive socket reliably queues (bookkeeping overhead subtracted).
  virtual size_t receive_budget() const = 0;

  // Starts to receive datagrams sent to `address`. Counted: join twice, leave twice.
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
  // Pushes queued datagrams; returns false if some are still queued because the medium is full.
  virtual bool flush() = 0;

  // Gathering, an optional capability: the device takes a payload out of the caller's memory.
  // Worthwhile for blocks of at least this many bytes, since the memory must be registered with the
  // device first; SIZE_MAX: not supported.
  virtual size_t gather_from() const { return SIZE_MAX; }
  // Replaces commit(): the first `header` bytes of the lent memory, then `length` bytes from
  // `offset` on of `block`, which is sent piece by piece. Returns false if nothing was queued and
  // the memory is still lent (copy, then commit()). The bytes are read until the datagram has left,
  // which is not reported; the transport holds a reference that keeps the memory alive until then.
  // A caller that writes to the memory earlier sends a mix of old and new bytes, which a checksum
  // made before detects.
  virtual bool commit_gather(size_t /*header*/, const Slice& /*block*/, size_t /*offset*/,
                             size_t /*length*/) {
    return false;
  }

  // Datagrams that had to be sent in fragments, since the medium now carries less than
  // max_datagram().
  virtual uint64_t fragmented() const { return 0; }
  // Datagrams for addresses that this host has joined, at ports on which no socket of the host
  // listens, as far as the medium counts them: they use the link, too. A system call; do not call
  // it at every poll.
  virtual uint64_t ignored() const { return 0; }

  // Null if this transport does not place.
  virtual Placer* placer() { return nullptr; }

  // During on_datagram(): the source of that datagram, if the medium was asked to report it.
  virtual Source source() const { return {}; }
  // The addresses from which the owner of this stream endpoint sends datagrams; empty if source()
  // returns nothing that could be compared.
  virtual std::vector<IpAddress> sources_of(const StreamAddress&) const { return {}; }

  // Hands received datagrams to `sink`, at most about `max_bytes` of them. Returns their number; 0
  // means that the socket was seen empty, and that no datagram is on its way from a device into
  // memory.
  virtual size_t receive(DatagramSink& sink, size_t max_bytes) = 0;
};

class StreamSink {
 public:
  virtual ~StreamSink() = default;
  // `frame` is the transport's memory, valid during the call only. Framing is intact; content is
  // not verified.
  virtual void on_frame(PeerId peer, Channel channel, ConstBytes frame) = 0;
  // The process of an added peer is gone, refused the connection, or broke the protocol. Called
  // once per peer; sends to it are dropped from then on. `graceful`: it closed after a goodbye
  // (close_peers()).
  virtual void on_peer_down(PeerId peer, const Status& why, bool graceful) = 0;
  // A peer that was not added is gone, and so is its id, which may be reused.
  virtual void on_stranger_gone(PeerId) {}
  // A connection was refused.
  virtual void on_refused(Cause, Source) {}
  // The bytes requested by RemoteMemory::read(); the transport's memory, valid during the call.
  virtual void on_read(PeerId, uint64_t /*token*/, ConstBytes) {}
};

// For an endpoint that is closing: discards everything that still arrives.
class DiscardingSink final : public StreamSink {
 public:
  void on_frame(PeerId, Channel, ConstBytes) override {}
  void on_peer_down(PeerId, const Status&, bool) override {}
};

// The data with which a peer can read a part of a block of this process.
struct RemoteGrant {
  uint64_t address = 0;       // of the block's first byte
  size_t first = 0, end = 0;  // bytes of the block that may be read
  uint32_t key = 0;
  // Readable as long as this lives; the memory itself may be gone before, and readers then get
  // meaningless bytes.
  std::shared_ptr<void> hold;
};

// One-sided reads, an optional capability of a Stream: bytes of a peer's region arrive without
// involving that peer's thread (RDMA Read).
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  // Lets peers read the piece of `block` that contains `offset`, and any datagram that begins in
  // it. The piece is registered with the device, its pages pinned, as long as a grant of it lives.
  // kResourceExhausted: no more memory may be pinned now.
  virtual Result<RemoteGrant> expose(const Slice& block, size_t offset) = 0;
  // Most bytes of one read().
  virtual size_t max_read() const = 0;
  // Reads from a peer's memory; StreamSink::on_read() delivers the bytes. Returns false if it is
  // not possible now (too many reads at once, no connection). Reads of a peer that goes down are
  // never completed.
  virtual bool read(PeerId peer, uint64_t address, uint32_t key, size_t length, uint64_t token) = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // The address to publish so that peers can reach this endpoint. `loopback`: for peers on the same
  // host.
  virtual StreamAddress address(bool loopback) const = 0;
  // Returns the id of this address; adds it if it is new. Connections are made lazily, by the first
  // send.
  virtual PeerId add_peer(const StreamAddress& address) = 0;
  // Used in place of add_peer() by an endpoint that only accepts connections: only these uids may
  // connect. A peer's address is learnt when it connects; nothing may be sent to it before. Its key
  // counts, if add_peer() was called with one (without a host) before. Call it before the first
  // poll(), and again when there are more peers. Such an endpoint may also connect to other peers,
  // by add_peer(). A peer that connects too early is refused, and tries again for a while. Returns
  // their ids, in this order.
  virtual std::vector<PeerId> expect(std::span<const uint64_t> uids) = 0;
  // Connection attempts that fail or get no reply are repeated for the liveness limit; then the
  // peer is down. For this peer they are repeated until `until` if that is later, since the hosts
  // of a group that is being created may become reachable late. 0: the liveness limit again.
  virtual void keep_trying(PeerId peer, Nanos until) = 0;

  // Queues one frame made of `parts`, copied unless the medium takes them immediately. Never fails
  // visibly: a broken peer is reported by on_peer_down. Callers limit bulk data by queued().
  virtual void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes accepted by send() and not yet taken by the medium.
  virtual size_t queued(PeerId peer, Channel channel) const = 0;

  // Sends and receives bytes, and hands over frames that arrived. Returns the number of events (0:
  // idle).
  virtual size_t poll(StreamSink& sink, Nanos now) = 0;

  // Sends the goodbye on all connections and flushes; returns true when nothing is left to send.
  // Call it repeatedly, with time passing, until it returns true or the caller's time limit ends.
  virtual bool close_peers(Nanos now) = 0;

  // Null if this transport has none.
  virtual RemoteMemory* remote_memory() { return nullptr; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual Datagram& datagram() = 0;
  virtual Stream& stream() = 0;
  // Sleeps until a message can be received or sent again, wake() is called, or `timeout` passes.
  virtual void wait(Nanos timeout) = 0;
  // Ends the current wait(), or the next one immediately. Any thread, async-signal-safe.
  virtual void wake() noexcept = 0;
  // Returns true if peers can still reach the stream endpoint at its address, false once this host
  // has lost the address. Any thread.
  virtual bool has_its_address() const { return true; }
  // For the child of a fork, which may have happened in the middle of another thread's call: closes
  // every descriptor without notifying the peers. wake() may still be called.
  virtual void abandon_after_fork() noexcept = 0;
  // One line for the log: interface, addresses, MTU, buffers granted, offloads.
  virtual std::string describe() const = 0;
};

}  // namespace mcast
