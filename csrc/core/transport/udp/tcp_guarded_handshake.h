// The part of a TcpStream that makes the connections of a guarded endpoint; it has no state of its
// own. By the lane's thread.
#pragma once

#include <cerrno>

#include "transport/udp/tcp_stream.h"

namespace mcast {

class TcpGuardedHandshake {
 public:
  // Stands for an errno: it ended the connection without a Challenge, as an endpoint does that
  // waits for a Hello.
  static constexpr int kNoWord = EPROTO;
  // To who has just connected. False: there are no random numbers, or it is gone.
  static bool challenge(const TcpStream& s, HalfOpen::Place& place);
  // The Hello or the Confirm is complete.
  static void on_message(TcpStream& s, HalfOpen::Place& place);
  // There is something to read of the acceptor's.
  static void on_challenge(TcpStream& s, TcpConnection& c);
  // The HelloAck that has been read; an accepted connection's Confirm is sent. The connection is
  // dead if it was none, or could not be confirmed.
  static std::optional<HelloAck> check_ack(TcpStream& s, TcpConnection& c);
  // None has come in time.
  static void no_challenge(TcpStream& s, const TcpConnection& c);

 private:
  static void on_hello(TcpStream& s, HalfOpen::Place& place);
  static void on_confirm(TcpStream& s, HalfOpen::Place& place);
  // The connection cannot be had: now, or at all.
  static void failed(TcpStream& s, const TcpConnection& c, const Status& why);
  static void refuse(TcpStream& s, HalfOpen::Place& place);
};

}  // namespace mcast
