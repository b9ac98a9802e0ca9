// A connection to an aggregator, over which records travel (wire/admission.h). Never blocks, but in
// resolve().
//
// Threads: one at a time.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "aggregation/member/record_link.h"
#include "base/ip_address.h"
#include "base/net_address.h"
#include "base/status.h"
#include "wire/admission.h"
#include "wire/record_stream.h"

namespace mcast {

// Where a host may be reached, best first. May ask a name server, which takes its time.
Result<std::vector<Endpoint>> resolve(const NetAddress& address);

class AdmissionLink final : public RecordLink {
 public:
  // Connects to the first of these that answers; one at least.
  explicit AdmissionLink(std::vector<Endpoint> addresses);
  ~AdmissionLink() override;
  AdmissionLink(const AdmissionLink&) = delete;
  AdmissionLink& operator=(const AdmissionLink&) = delete;

  int descriptor() const { return fd_; }
  // For poll().
  short events() const;
  void send_text(const std::string& text) override;
  // Moves bytes after poll(), `ready`: what it returned. Not ok: the connection is over, and why.
  Status serve(short ready);
  Result<bool> next(wire::Admission& record, std::string& text) override;
  Status begun() const override { return failure_; }

 private:
  Status connect_next();
  Status connected();
  Status write();
  Status read();

  std::vector<Endpoint> addresses_;  // not tried yet, in reverse
  int fd_ = -1;
  bool connecting_ = false;
  Status failure_;   // of the last address
  std::string out_;  // not written yet
  wire::RecordReader in_{wire::kMaxAdmission};
};

}  // namespace mcast
