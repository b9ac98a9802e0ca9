// The part of an RcStream that makes the connections of a guarded endpoint; it has no state of its
// own. By the lane's thread.
#pragma once

#include "transport/verbs/stream.h"

namespace mcast::verbs {

// Connections of others that nothing is proved of yet. Each has a queue pair and its receives
// (288 KB), so who asks for more than these is told to come later; none that was let in has to go
// for another.
inline constexpr size_t kPlacesOfPeer = 2;      // that say that they are this endpoint
inline constexpr size_t kPlacesOfUnknown = 32;  // that say that they are any that is not known yet
inline constexpr size_t kToldLater = 1024;      // uids that are known to have been told so

class RcGuardedHandshake {
 public:
  // Somebody wants to connect.
  static void on_request(RcStream& s, const CmEvent& event);
  // We do.
  static Status connect(RcStream& s, Connection& c, const Hello& hello);
  // Our connection stands, and the acceptor has said the first word.
  static void on_challenge(RcStream& s, Connection& c, ConstBytes challenge);
  // A message before the records.
  static void on_message(RcStream& s, Connection& c, const ibv_wc& wc);
  // Of a connection of ours: whether the acceptor has yet to show, by its first record, that it has
  // taken our Confirm. No frame was sent before, so what ends now can be tried again.
  static bool in_doubt(const Connection& c);
  // A record: `bytes` is then what is in it. False: it does not open, and the connection is over.
  static bool open(RcStream& s, Connection& c, ConstBytes& bytes);
  // Of a half-open connection.
  static void on_event(RcStream& s, Connection& c, const CmEvent& event);
  static void gone(RcStream& s, Connection& c);
  static void run_timers(RcStream& s, Nanos now, bool away);

 private:
  using Awaits = RcGuard::Awaits;
  using Phase = RcStream::Phase;
  using State = Connection::State;

  static void on_hello(RcStream& s, Connection& c, ConstBytes bytes);
  static void on_confirm(RcStream& s, Connection& c, ConstBytes bytes);
  static void on_ack(RcStream& s, Connection& c, ConstBytes bytes);
  static bool has_place(const RcStream& s, uint64_t claimed);
  static bool welcome(const RcStream& s, uint64_t source);
  static void later(RcStream& s, const CmEvent& event, uint64_t claimed, Cause cause);
  static void refuse(RcStream& s, Connection& c);
  static void failed(RcStream& s, const Connection& c, const Status& why);
  // False: there are no keys, and the peer has failed.
  static bool begin_records(RcStream& s, Connection& c, crypto::StreamChains chains);
  static Nanos patience(const RcStream& s, const Connection& c);
};

}  // namespace mcast::verbs
