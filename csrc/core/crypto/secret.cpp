// Bytes of the secret are only ever in SecretPages, in libcrypto's data structures, and in the
// environment with which the process was started. The environment is on the stack of the first
// thread and stays there whatever setenv() does later; /proc/self/stat gives its address, and it is
// overwritten in place. A descriptor can be read only once, so secrets from /dev/fd/N or from the
// environment are kept for later groups.
#include "crypto/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "base/checksum.h"
#include "base/fd.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random.h"
#include "crypto/handshake.h"
#include "crypto/kdf.h"
#include "crypto/library.h"

namespace mcast::crypto {
namespace {

constexpr size_t kMostText = 1024;  // of a file, with white space

std::array<std::byte, 4> check_of(ConstBytes secret) {
  const uint32_t sum = crc32c(secret);
  std::array<std::byte, 4> out;
  for (size_t i = 0; i < out.size(); i++) out[i] = static_cast<std::byte>(sum >> (24 - 8 * i));
  return out;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Memory of the environment with which the process was started; empty: unknown.
Bytes first_environment() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/stat", "re"), &std::fclose);
  std::array<char, 4096> line{};
  if (!file || std::fgets(line.data(), line.size(), file.get()) == nullptr) return {};
  // The name, in parentheses, may contain anything; fields 3, 4, ... follow it.
  const char* at = std::strrchr(line.data(), ')');
  for (int field = 2; at != nullptr && field < 50; field++) {
    at = std::strchr(at + 1, ' ');
  }
  unsigned long begin = 0, end = 0;
  if (at == nullptr || std::sscanf(at, " %lu %lu", &begin, &end) != 2) return {};
  if (begin == 0 || end <= begin) return {};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel gives the address
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

void wipe_first_environment() {
  const Bytes all = first_environment();
  if (all.empty()) return;
  const std::string wanted = std::string(kSecretVariable) + "=";
  char* const text = reinterpret_cast<char*>(all.data());
  for (size_t at = 0; at < all.size();) {
    const size_t length = ::strnlen(text + at, all.size() - at);
    if (length >= wanted.size() && std::memcmp(text + at, wanted.data(), wanted.size()) == 0) {
      wipe(all.subspan(at + wanted.size(), length - wanted.size()));
    }
    at += length + 1;
  }
}

void drop_from_environment(char* value) {
  wipe({reinterpret_cast<std::byte*>(value), std::strlen(value)});
  (void)::unsetenv(kSecretVariable);
  wipe_first_environment();
}

// Removes the secret from the environment and returns it; nothing: not set.
Result<SecretPages> take_from_environment() {
  char* const value = std::getenv(kSecretVariable);
  if (value == nullptr || *value == 0) {
    return Status(Code::kUnavailable,
                  "security needs a secret: set MCAST_SECRET_FILE or MCAST_SECRET on every rank "
                  "(torch-mcast secret new makes one), or MCAST_TRUST_STORE=1");
  }
  Result<SecretPages> secret = parse_secret(value);
  if (!secret.ok()) return secret.status().with_context("environment variable MCAST_SECRET");
  drop_from_environment(value);
  return secret;
}

using CheckNonce = std::array<std::byte, 16>;

bool is_descriptor(const std::string& path) { return path.rfind("/dev/fd/", 0) == 0; }

Status check_file(const struct stat& file, const std::string& path) {
  const auto refuse = [&path](const std::string& why) {
    return Status(Code::kInvalidArgument, "setting secret_file: " + path + " " + why);
  };
  if (is_descriptor(path) && !S_ISREG(file.st_mode)) return {};
  if (!S_ISREG(file.st_mode)) return refuse("is not a regular file");
  if (file.st_uid != 0 && file.st_uid != ::geteuid()) {
    return refuse("belongs to user " + std::to_string(file.st_uid) + ", not to this one or root");
  }
  if ((file.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return refuse("can be written by others: chmod 600 it, and make a new secret");
  }
  if ((file.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    log(LogLevel::kWarn,
        "%s can be read by others: whoever has the secret can join the job; chmod "
        "600 it",
        path.c_str());
  }
  return {};
}

Result<SecretPages> read_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat file {};
  if (!fd.valid() || ::fstat(fd.get(), &file) != 0) {
    return Status::system(errno, "setting secret_file: " + path);
  }
  if (Status status = check_file(file, path); !status.ok()) return status;
  Result<SecretPages> text = SecretPages::make(kMostText);
  if (!text.ok()) return text.status();
  Bytes room = text->bytes();
  while (!room.empty()) {
    const ssize_t got = ::read(fd.get(), room.data(), room.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system(errno, "setting secret_file: " + path);
    if (got == 0) break;
    room = room.subspan(static_cast<size_t>(got));
  }
  const size_t size = text->bytes().size() - room.size();
  Result<SecretPages> secret =
      parse_secret({reinterpret_cast<const char*>(text->bytes().data()), size});
  if (!secret.ok()) return secret.status().with_context("setting secret_file: " + path);
  return secret;
}

// Secrets that can be read only once, by their origin.
struct Kept {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const JobSecret>> secrets;
};
Kept& kept() {
  static auto* const kKept = new Kept;
  return *kKept;
}

Result<std::shared_ptr<const JobSecret>> made(Result<SecretPages> secret,
                                              const std::string& origin) {
  if (!secret.ok()) return secret.status();
  return JobSecret::make(secret->bytes(), origin);
}

}  // namespace

Result<SecretPages> parse_secret(std::string_view text) {
  text = stripped(text);
  const std::string_view prefix = kSecretPrefix;
  if (text.substr(0, prefix.size()) != prefix) {
    return Status(Code::kInvalidArgument,
                  "the secret does not begin with " + std::string(prefix) +
                      ": torch-mcast did not make it, so others might guess it; make one with "
                      "torch-mcast secret new");
  }
  text.remove_prefix(prefix.size());
  Result<SecretPages> secret = SecretPages::make(kSecretBytes);
  if (!secret.ok()) return secret.status();
  std::array<std::byte, sizeof(uint32_t)> check;
  const bool whole =
      text.size() == 2 * (kSecretBytes + check.size()) + 1 && text[2 * kSecretBytes] == '-' &&
      from_hex(text.substr(0, 2 * kSecretBytes), secret->bytes()) &&
      from_hex(text.substr(2 * kSecretBytes + 1), check) && check_of(secret->bytes()) == check;
  if (whole) return secret;
  return Status(Code::kInvalidArgument,
                "the secret's text is damaged: its length or its checksum is wrong; copy it again "
                "from where torch-mcast secret new wrote it");
}

JobSecret::JobSecret(SecretBox<Keys> keys, std::string origin)
    : keys_(std::move(keys)), origin_(std::move(origin)), pid_(::getpid()) {}

Result<std::shared_ptr<const JobSecret>> JobSecret::make(ConstBytes secret, std::string origin) {
  if (Status status = load_library(); !status.ok()) return status;
  Result<SecretBox<Keys>> keys = SecretBox<Keys>::make();
  if (!keys.ok()) return keys.status();
  const Key root = root_key(secret);
  (**keys).jobs = jobs_key(root);
  (**keys).record = record_key(root);
  (**keys).hello = hello_key(root);
  (**keys).mix = mix_key(root);
  const Key role = role_key(root, static_cast<uint8_t>(Role::kAggregator), kAggregatorName);
  const Key theirs = root_key(role.bytes());
  (**keys).aggregators = {record_key(theirs), hello_key(theirs), mix_key(theirs)};
  return std::shared_ptr<const JobSecret>(
      new JobSecret(std::move(keys).value(), std::move(origin)));
}

Result<std::shared_ptr<const JobSecret>> JobSecret::for_job(const std::string& name) const {
  if (!ok_here()) return Status(Code::kUnavailable, "the secret belongs to the parent process");
  Result<SecretBox<Keys>> keys = SecretBox<Keys>::make();
  if (!keys.ok()) return keys.status();
  const Key job = job_key(keys_->jobs, name);
  (**keys).record = record_key(job);
  (**keys).hello = hello_key(job);
  (**keys).mix = mix_key(job);
  const RoleKeys& theirs = keys_->aggregators;
  (**keys).aggregators = {theirs.record.clone(), theirs.hello.clone(), theirs.mix.clone()};
  return std::shared_ptr<const JobSecret>(new JobSecret(std::move(keys).value(), origin_));
}

std::string JobSecret::make_check() const {
  CheckNonce nonce{};
  (void)secure_random_bytes(nonce);  // zeros would only show which checks are of one secret
  return hex_text(nonce) + hex_text(secret_check(record(), nonce));
}

bool JobSecret::fits(std::string_view check) const {
  CheckNonce nonce;
  SecretCheck rest;
  return check.size() == 2 * (nonce.size() + rest.size()) &&
         from_hex(check.substr(0, 2 * nonce.size()), nonce) &&
         from_hex(check.substr(2 * nonce.size()), rest) && rest == secret_check(record(), nonce);
}

std::string JobSecret::fingerprint() const { return hex_text(secret_check(record(), {})); }

bool JobSecret::ok_here() const { return pid_ == ::getpid(); }

Result<std::shared_ptr<const JobSecret>> find_secret(const Config& config) {
  const std::string& path = config.secret_file;
  if (!path.empty() && !is_descriptor(path)) return made(read_file(path), path);
  const std::string origin = path.empty() ? kSecretVariable : path;
  const std::lock_guard<std::mutex> lock(kept().mutex);
  std::shared_ptr<const JobSecret>& known = kept().secrets[origin];
  if (known && !known->ok_here()) {
    return Status(Code::kUnavailable,
                  origin +
                      " was read by the process from which this one was forked; set "
                      "MCAST_SECRET_FILE, which each process reads for itself");
  }
  if (!known) {
    auto secret = made(path.empty() ? take_from_environment() : read_file(path), origin);
    if (!secret.ok()) return secret;
    known = *secret;
  }
  return known;
}

bool secret_is_set(const Config& config) {
  if (!config.secret_file.empty()) return true;
  const char* const value = std::getenv(kSecretVariable);
  if (value != nullptr && *value != 0) return true;
  // Already read by an earlier group, or by the process that this one was forked from.
  const std::lock_guard<std::mutex> lock(kept().mutex);
  const auto it = kept().secrets.find(kSecretVariable);
  return it != kept().secrets.end() && it->second != nullptr;
}

bool drop_secret_of_environment() {
  char* const value = std::getenv(kSecretVariable);
  if (value == nullptr) return false;
  drop_from_environment(value);
  return true;
}

}  // namespace mcast::crypto
