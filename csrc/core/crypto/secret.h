// The job's secret: where it comes from, and the keys that follow from it alone. It is read from a
// file (setting secret_file), else from the environment variable MCAST_SECRET, which it is taken
// out of: this process and those that it starts later do not find it there, nor does who reads
// /proc/<pid>/environ.
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
// A secret's text: this, its bytes in hex, a dash, and their CRC-32C in hex. Other texts are
// refused, since people would make up what can be guessed, and everybody who sees a MAC can try
// guesses.
inline constexpr const char* kSecretPrefix = "mcast-secret-";
inline constexpr const char* kSecretVariable = "MCAST_SECRET";

// Of a text as above, with white space around it. kInvalidArgument: what is wrong with it, without
// a character of it.
Result<SecretPages> parse_secret(std::string_view text);

// What ranks have in common with aggregators, which get it as a secret of their own (torch-mcast
// secret aggregator) and so prove what they are, and cannot be ranks.
struct RoleKeys {
  Key record, hello, mix;
};

class JobSecret {
 public:
  // `origin`: for people. kUnavailable: no libcrypto, or no pages for it. The keys are those of no
  // job: a daemon's; ranks take for_job().
  static Result<std::shared_ptr<const JobSecret>> make(ConstBytes secret, std::string origin);
  // The same secret with the keys of the job of this name: what has a MAC by one job's keys is
  // worth nothing in another job, though both have one secret.
  Result<std::shared_ptr<const JobSecret>> for_job(const std::string& name) const;

  const Key& record() const { return keys_->record; }
  const Key& hello() const { return keys_->hello; }
  const Key& mix() const { return keys_->mix; }
  const RoleKeys& aggregators() const { return keys_->aggregators; }
  // For others who have the secret (of the same job), to see that they do: a nonce and what follows
  // from both. Says nothing to anybody else, not even whether two are of one secret.
  std::string make_check() const;
  bool fits(std::string_view check) const;
  // Tells secrets apart within a process.
  std::string fingerprint() const;
  const std::string& origin() const { return origin_; }
  // False in the child of a fork, where the keys are zeros.
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

// The secret that the settings of a group mean. kUnavailable: there is none, or no library;
// kInvalidArgument: it cannot be used, and why.
Result<std::shared_ptr<const JobSecret>> find_secret(const Config& config);
// Whether there is one, without touching it: what was taken out of the environment counts.
bool secret_is_set(const Config& config);
// Takes MCAST_SECRET out of this process's environment and overwrites it, for a process that needs
// none: another one has read it. Whether there was one. As setenv(), beside no getenv().
bool drop_secret_of_environment();

}  // namespace mcast::crypto
