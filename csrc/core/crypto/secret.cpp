// Bytes of the secret only ever lie in SecretPages, in what libcrypto makes of them, and in the
// environment that the process was started with. That lies on the stack of the first thread and
// stays there whatever setenv() does later; /proc/self/stat tells where, and it is overwritten in
// place. A descriptor can be read once only, so what came from /dev/fd/N or from the environment is
// kept for later groups.
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

#include "base/fd.h"
#include "base/hex.h"
#include "base/log.h"
#include "crypto/handshake.h"
#include "crypto/kdf.h"
#include "crypto/library.h"
#include "wire/bytes.h"

namespace mcast::crypto {
namespace {

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  return c == '/' || c == '_' ? 63 : -1;
}

// Digits of `bits` bits each, most significant first; bits that make no byte are dropped. Returns
// the number of bytes; SIZE_MAX: a character is no such digit.
template <typename Digit>
size_t decode(std::string_view text, unsigned bits, Digit&& digit, Bytes out) {
  uint32_t window = 0;
  unsigned have = 0;
  size_t size = 0;
  for (const char c : text) {
    const int value = digit(c);
    if (value < 0) return SIZE_MAX;
    window = window << bits | static_cast<uint32_t>(value);
    have += bits;
    if (have < 8) continue;
    have -= 8;
    if (size == out.size()) return SIZE_MAX;
    out[size++] = static_cast<std::byte>(window >> have);
  }
  return size;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Where the environment that the process was started with lies; empty: not known.
Bytes first_environment() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/stat", "re"), &std::fclose);
  std::array<char, 4096> line{};
  if (!file || std::fgets(line.data(), line.size(), file.get()) == nullptr) return {};
  // The name, in parentheses, may hold anything; behind it come fields 3, 4, ...
  const char* at = std::strrchr(line.data(), ')');
  for (int field = 2; at != nullptr && field < 50; field++) {
    at = std::strchr(at + 1, ' ');
  }
  unsigned long begin = 0, end = 0;
  if (at == nullptr || std::sscanf(at, " %lu %lu", &begin, &end) != 2) return {};
  if (begin == 0 || end <= begin) return {};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel says where
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

// Takes it out; nothing: there is none.
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

bool is_descriptor(const std::string& path) { return path.rfind("/dev/fd/", 0) == 0; }

Status check_file(const struct stat& file, const std::string& path) {
  const auto refuse = [&path](const std::string& why) {
    return Status(Code::kInvalidArgument, "setting secret_file: " + path + " " + why);
  };
  if (is_descriptor(path) && !S_ISREG(file.st_mode)) return {};
  if (!S_ISREG(file.st_mode)) return refuse("is no regular file");
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
  Result<SecretPages> text = SecretPages::make(2 * kMostSecret + 2);
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

// What could be read once only, by its origin.
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
  Result<SecretPages> room = SecretPages::make(kMostSecret);
  if (!room.ok()) return room.status();
  const bool hex = text.size() % 2 == 0 &&
                   text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  while (!hex && !text.empty() && text.back() == '=') text.remove_suffix(1);
  const size_t size = hex ? decode(text, 4, hex_digit, room->bytes())
                          : decode(text, 6, base64_digit, room->bytes());
  if (size == SIZE_MAX) {
    return Status(Code::kInvalidArgument, "the secret is neither hex nor base64 of at most " +
                                              std::to_string(kMostSecret) + " bytes");
  }
  if (size < kLeastSecret) {
    return Status(Code::kInvalidArgument, "the secret has " + std::to_string(size) +
                                              " bytes; at least " + std::to_string(kLeastSecret) +
                                              " are needed (torch-mcast secret new makes 32)");
  }
  Result<SecretPages> exact = SecretPages::make(size);
  if (exact.ok()) std::memcpy(exact->bytes().data(), room->bytes().data(), size);
  return exact;
}

JobSecret::JobSecret(SecretBox<Keys> keys, uint32_t id, std::string origin)
    : keys_(std::move(keys)), id_(id), origin_(std::move(origin)), pid_(::getpid()) {}

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
      new JobSecret(std::move(keys).value(), secret_id(root), std::move(origin)));
}

Result<std::shared_ptr<const JobSecret>> JobSecret::for_job(const std::string& name) const {
  if (!ok_here()) return Status(Code::kUnavailable, "the secret is that of the parent process");
  Result<SecretBox<Keys>> keys = SecretBox<Keys>::make();
  if (!keys.ok()) return keys.status();
  const Key job = job_key(keys_->jobs, name);
  (**keys).record = record_key(job);
  (**keys).hello = hello_key(job);
  (**keys).mix = mix_key(job);
  const RoleKeys& theirs = keys_->aggregators;
  (**keys).aggregators = {theirs.record.clone(), theirs.hello.clone(), theirs.mix.clone()};
  return std::shared_ptr<const JobSecret>(new JobSecret(std::move(keys).value(), id_, origin_));
}

std::string JobSecret::id_text() const {
  std::array<std::byte, 4> bytes;
  wire::store<uint32_t>(bytes.data(), id_);
  return hex_text(bytes);
}

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
                      " was read by the process that this one was forked from; give it "
                      "MCAST_SECRET_FILE, which each reads for itself");
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
  // An earlier group has read it, or the process that this one was forked from.
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
