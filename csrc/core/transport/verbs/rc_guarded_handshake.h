// The part of an RcStream that makes the connections of a guarded endpoint; it has no state of its
// own. Used by the lane's thread only.
#pragma once

#include "transport/verbs/stream.h"

namespace mcast::verbs {

// Maximum number of connections opened by others that have proved nothing yet. Each has a queue
// pair and its receives (288 KB), so a connector beyond the limit is refused with kLater; a
// connection that was let in is never displaced.
inline constexpr size_t kPlacesOfPeer = 2;      // that claim the same uid
inline constexpr size_t kPlacesOfUnknown = 32;  // that claim an unknown uid
inline constexpr size_t kToldLater = 1024;      // uids recorded as refused with kLater

class RcGuardedHandshake {
 public:
  // Handles a connect request of a peer.
  static void on_request(RcStream& s, const CmEvent& event);
  // Connects to a peer.
  static Status connect(RcStream& s, Connection& c, const Hello& hello);
  // Our connection is established, and the acceptor has sent its Challenge.
  static void on_challenge(RcStream& s, Connection& c, ConstBytes challenge);
  // Handles a message that arrives before the records.
  static void on_message(RcStream& s, Connection& c, const ibv_wc& wc);
  // For a connection opened here: returns true if the acceptor has yet to show, by its first
  // record, that it received our Confirm. No frame was sent before, so a connection that ends now
  // can be tried again.
  static bool in_doubt(const Connection& c);
  // Opens a record: `bytes` is then its contents. Returns false if it does not open; the connection
  // is then over.
  static bool open(RcStream& s, Connection& c, ConstBytes& bytes);
  // Handles an event of a half-open connection.
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
  // Returns false if there are no keys; the peer has then failed.
  static bool begin_records(RcStream& s, Connection& c, crypto::StreamChains chains);
  static Nanos patience(const RcStream& s, const Connection& c);
};

}  // namespace mcast::verbs
