// What a TcpStream has refused since it last told its sink.
#pragma once

#include <utility>
#include <vector>

#include "transport/transport.h"
#include "transport/udp/options.h"

namespace mcast {

class TcpRefusals {
 public:
  explicit TcpRefusals(TcpStats& stats) : stats_(stats) {}  // outlives this

  void note(Cause cause, Source source) {
    switch (cause) {
      case Cause::not_allowed:
        ++stats_.not_allowed;
        break;
      case Cause::hello_timeouts:
        ++stats_.hello_timeouts;
        break;
      case Cause::crowded_out:
        ++stats_.crowded_out;
        break;
      default:
        ++stats_.hello_refused;
        break;
    }
    waiting_.emplace_back(cause, source);
  }
  void tell(StreamSink& sink) {
    for (const auto& [cause, source] : waiting_) sink.on_refused(cause, source);
    waiting_.clear();
  }

 private:
  TcpStats& stats_;
  std::vector<std::pair<Cause, Source>> waiting_;
};

}  // namespace mcast
