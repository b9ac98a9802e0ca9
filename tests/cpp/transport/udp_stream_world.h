// A TCP endpoint under test and raw sockets that talk to it. Raw sockets stay on 127.0.0.1.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/socket_address.h"
#include "transport/transport_fixture.h"
#include "transport/udp_world.h"

namespace mcast::testing {

// Real sockets, and a clock that a test can advance.
struct ShiftedWorld : UdpWorld {
  Nanos shift = 0;
  Nanos now() const { return UdpWorld::now() + shift; }
};

class UdpStreamTest : public TransportContract<ShiftedWorld> {
 protected:
  const TcpStats& stats(size_t i) {
    return static_cast<UdpTransport&>(*node(i).transport).stream_stats();
  }
  // `from`: an address of the loopback network in host byte order; 0: chosen by the kernel.
  static Fd raw_connect(const StreamAddress& to, uint32_t from = 0) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (from != 0) {
      EXPECT_EQ(bind_to(fd.get(), {IpAddress::v4(from), 0}), 0);
    }
    EXPECT_EQ(connect_to(fd.get(), {*IpAddress::parse(to.host), to.port}), 0);
    return fd;
  }
  static bool raw_send(const Fd& fd, ConstBytes bytes) {
    return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Returns true if the transport has closed its end, and stores what it sent before.
  bool closed(const Fd& fd, Buffer* received = nullptr) {
    return pump([&] {
      std::byte bytes[64];
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got > 0 && received != nullptr) received->insert(received->end(), bytes, bytes + got);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
  }
  Hello hello_to(size_t i, uint64_t source) {
    Hello hello;
    hello.source = source;
    hello.target = node(i).st().address(true).uid;
    hello.listen_port = 1;
    return hello;
  }
  // Advances the time in steps too short to look as if this process had been stopped.
  void pass(Nanos time) {
    const Nanos step = world_.options.liveness_limit / 16;
    for (; time > 0; time -= step) {
      world_.shift += std::min(step, time);
      settle(1);
    }
  }
  // An address of 127.0.0.1 on which no socket listens, bound to `reserved` so that none will.
  static StreamAddress nobody(Fd& reserved) {
    StreamAddress address{4711, "127.0.0.1", 0};
    reserved = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind_to(reserved.get(), {IpAddress::v4(INADDR_LOOPBACK), 0}), 0);
    address.port = local_endpoint(reserved.get()).port;
    return address;
  }
  // A raw connection that the transport accepts as a known peer.
  Fd accepted_peer(uint64_t source, Channel channel = Channel::kControl) {
    node(0).st().add_peer({source, "127.0.0.1", 1});
    return accepted_stranger(source, channel);
  }
  // The same for an unknown peer.
  Fd accepted_stranger(uint64_t source, Channel channel = Channel::kControl) {
    Fd fd = raw_connect(node(0).st().address(true));
    Hello hello = hello_to(0, source);
    hello.channel = channel;
    EXPECT_TRUE(raw_send(fd, encode(hello)));
    Buffer ack;
    EXPECT_TRUE(pump([&] {
      std::byte bytes[kHelloAckSize];
      const ssize_t got = ::recv(fd.get(), bytes, kHelloAckSize - ack.size(), MSG_DONTWAIT);
      if (got > 0) ack.insert(ack.end(), bytes, bytes + got);
      return ack.size() == kHelloAckSize;
    }));
    return fd;
  }
  // A raw listener on 127.0.0.1 and its address.
  static Fd raw_listen(StreamAddress& address) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind_to(fd.get(), {IpAddress::v4(INADDR_LOOPBACK), 0}), 0);
    EXPECT_EQ(::listen(fd.get(), 8), 0);
    address.host = "127.0.0.1";
    address.port = local_endpoint(fd.get()).port;
    return fd;
  }
  void expect_still_working() {
    make_nodes(1);
    const size_t last = nodes_.size() - 1;
    const size_t before = node(0).frames.size();
    const PeerId peer = introduce(last, 0);
    node(last).send(peer, Channel::kControl, pattern(64, 4));
    EXPECT_TRUE(pump([&] { return node(0).frames.size() > before; }));
    EXPECT_EQ(node(0).frames.back().data, pattern(64, 4));
  }
};

}  // namespace mcast::testing
