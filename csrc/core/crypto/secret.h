// The job's secret: its source, and the keys derived from it alone. It is read from a file (setting
// secret_file), else from the environment variable MCAST_SECRET, which is then removed: neither
// this process and its later children nor a reader of /proc/<pid>/environ find it there.
//
// A JobSecret does not change; any thread. In the child of a fork it is empty: use ok_here().
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/status.h"
#include "crypto/arena.h"
#include "crypto/key.h"

namespace mcast::crypto {

inline constexpr size_t kSecretBytes = 32;
// Format of a secret's text: this prefix, its bytes in hex, a dash, and their CRC-32C in hex. Other
// texts are refused, since people would make up secrets that can be guessed, and everybody who sees
// a MAC can try guesses.
inline constexpr const char* kSecretPrefix = "mcast-secret-";
inline constexpr const char* kSecretVariable = "MCAST_SECRET";

// Parses a text of this format, with white space around it. kInvalidArgument: the fault, without
// any character of the text.
Result<SecretPages> parse_secret(std::string_view text);

// Keys that ranks share with aggregators. Aggregators get them from a separate secret (torch-mcast
// secret aggregator), with which they prove their role but cannot act as ranks.
struct RoleKeys {
  Key record, hello, mix;
};

class JobSecret {
 public:
  // `origin`: for people. kUnavailable: no libcrypto, or no pages for the secret. The keys are not
  // those of a job: they are for a daemon; ranks use for_job().
  static Result<std::shared_ptr<const JobSecret>> make(ConstBytes secret, std::string origin);
  // The same secret with the keys of the job of this name: a MAC made with one job's keys is
  // invalid in another job with the same secret.
  Result<std::shared_ptr<const JobSecret>> for_job(const std::string& name) const;

  const Key& record() const { return keys_->record; }
  const Key& hello() const { return keys_->hello; }
  const Key& mix() const { return keys_->mix; }
  const RoleKeys& aggregators() const { return keys_->aggregators; }
  // Lets others with the secret (of the same job) verify that this side has it: a nonce and a value
  // derived from both. It reveals nothing to anybody else, not even whether two checks are of one
  // secret.
  std::string make_check() const;
  bool fits(std::string_view check) const;
  // Distinguishes secrets within a process.
  std::string fingerprint() const;
  const std::string& origin() const { return origin_; }
  // Returns false in the child of a fork, where the keys are zeros.
  bool ok_here() const;

 private:
  struct Keys {
    Key jobs, record, hello, mix;
    RoleKeys aggregators;
  };
  JobSecret(SecretBox<Keys> keys, std::string origin);
  SecretBox<Keys> keys_;
  const std::string origin_;
  const pid_t pid_;
};

// The secret selected by the settings of a group. kUnavailable: there is none, or no library;
// kInvalidArgument: it cannot be used; the text gives the reason.
Result<std::shared_ptr<const JobSecret>> find_secret(const Config& config);
// Returns true if a secret is set, without reading it: one that was removed from the environment
// counts.
bool secret_is_set(const Config& config);
// Removes MCAST_SECRET from this process's environment and overwrites it, for a process that does
// not need it because another one has read it. Returns true if it was set. As for setenv(), no
// thread may call getenv() meanwhile.
bool drop_secret_of_environment();

}  // namespace mcast::crypto
