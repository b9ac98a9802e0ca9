// An aggregator's side of admission, controlled step by step by a test: a listener on loopback that
// sends the replies that the test gives it and stores what it reads.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/net_address.h"
#include "wire/admission.h"
#include "wire/record_stream.h"

namespace mcast::test {

// The aggregator's end of a connection from an engine that asks for admission.
class AskerEnd {
 public:
  explicit AskerEnd(int fd) : fd_(fd) {}
  ~AskerEnd() { ::close(fd_); }
  AskerEnd(const AskerEnd&) = delete;
  AskerEnd& operator=(const AskerEnd&) = delete;

  void raw(const std::string& bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send(const wire::Admission& record) { raw(wire::framed(wire::encode(record))); }
  // Returns the next record, or nothing if the connection has ended or no record arrived within
  // `patience`.
  std::optional<wire::Admission> read(Nanos patience = 5 * kSecond) {
    const auto text = read_text(patience);
    wire::Admission record;
    if (!text) return std::nullopt;
    EXPECT_TRUE(wire::decode_admission(*text, record).ok());
    return record;
  }
  std::optional<std::string> read_text(Nanos patience = 5 * kSecond) {
    std::string text;
    while (!in_.next(text)) {
      pollfd ready{fd_, POLLIN, 0};
      char buffer[4096];
      if (::poll(&ready, 1, static_cast<int>(patience / kMilli)) <= 0) return std::nullopt;
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) return std::nullopt;
      in_.append({buffer, static_cast<size_t>(got)});
    }
    return text;
  }
  bool says_goodbye() {
    const auto record = read();
    return record && std::holds_alternative<wire::Bye>(*record);
  }

 private:
  const int fd_;
  wire::RecordReader in_{wire::kMaxAdmission};
};

class AggregatorStub {
 public:
  // `port` 0: any free port.
  explicit AggregatorStub(uint16_t port = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    socklen_t size = sizeof at;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(fd_, 16), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = {"127.0.0.1", ntohs(at.sin_port)};
  }
  ~AggregatorStub() { ::close(fd_); }
  AggregatorStub(const AggregatorStub&) = delete;
  AggregatorStub& operator=(const AggregatorStub&) = delete;

  const NetAddress& address() const { return address_; }
  // Returns the next connection, or null if none arrived within `patience`.
  std::unique_ptr<AskerEnd> take(Nanos patience = 5 * kSecond) {
    pollfd ready{fd_, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(patience / kMilli)) <= 0) return nullptr;
    const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    return fd < 0 ? nullptr : std::make_unique<AskerEnd>(fd);
  }

 private:
  int fd_ = -1;
  NetAddress address_;
};

// A reply that admits the group with stations of these uids.
inline wire::Accept admits(const std::vector<uint64_t>& uids) {
  wire::Accept answer;
  answer.process = 77;
  answer.quota = 1 << 20;
  answer.mtu = 1500;
  for (const uint64_t uid : uids) {
    answer.stations.push_back({uid, "10.0.0.9", static_cast<uint16_t>(uid), 32768});
  }
  return answer;
}

}  // namespace mcast::test
