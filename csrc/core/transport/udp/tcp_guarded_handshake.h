// The part of a TcpStream that makes the connections of a guarded endpoint; it has no state of its
// own. Used by the lane's thread only.
#pragma once

#include <cerrno>

#include "transport/udp/tcp_stream.h"

namespace mcast {

class TcpGuardedHandshake {
 public:
  // Used in place of an errno: the peer ended the connection without a Challenge, as an endpoint
  // does that waits for a Hello.
  static constexpr int kNoWord = EPROTO;
  // Sends a Challenge to an accepted connection. Returns false if there are no random numbers, or
  // the connection is gone.
  static bool challenge(const TcpStream& s, HalfOpen::Place& place);
  // Handles a complete Hello or Confirm.
  static void on_message(TcpStream& s, HalfOpen::Place& place);
  // Reads from the acceptor, which owes the Challenge.
  static void on_challenge(TcpStream& s, TcpConnection& c);
  // Returns the HelloAck that has been read, after sending the Confirm if the connection was
  // accepted. The connection is dead if the message was not a HelloAck, or could not be confirmed.
  static std::optional<HelloAck> check_ack(TcpStream& s, TcpConnection& c);
  // Handles a Challenge that has not arrived in time.
  static void no_challenge(TcpStream& s, const TcpConnection& c);

 private:
  static void on_hello(TcpStream& s, HalfOpen::Place& place);
  static void on_confirm(TcpStream& s, HalfOpen::Place& place);
  // Handles a connection that cannot be made, now or at all.
  static void failed(TcpStream& s, const TcpConnection& c, const Status& why);
  static void refuse(TcpStream& s, HalfOpen::Place& place);
};

}  // namespace mcast
