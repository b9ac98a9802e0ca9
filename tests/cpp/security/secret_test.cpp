// Sources of a secret, texts that are not a secret, and traces of a secret in the process
// afterwards.
#include "crypto/secret.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "crypto/arena.h"
#include "runtime/security.h"
#include "support/forbidden_calls.h"
#include "support/secret_text.h"
#include "support/temporary_folder.h"

namespace mcast::crypto {
namespace {

std::string text_of(const Result<SecretPages>& pages) {
  const Bytes bytes = pages->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Secret, TextsOfTheCommandAreRead) {
  const std::string plain = "0123456789abcdef0123456789ABCDEF";  // of text bytes
  const std::string text = test::secret_text(bytes_of(plain));
  EXPECT_EQ(text,
            "mcast-secret-3031323334353637383961626364656630313233343536373839414243444546-"
            "abdb1f00");
  EXPECT_EQ(text_of(parse_secret(text)), plain);
  EXPECT_EQ(text_of(parse_secret(" " + text + "\r\n")), plain);
}

// An invented secret can be found by trying, and nothing would report it later.
TEST(Secret, MistakesAreNamedWithoutACharacterOfIt) {
  const std::string good = test::secret_text('a');
  std::string swapped = good, digit = good;
  std::swap(swapped[20], swapped[80]);
  digit[30] = 'g';
  const char* const made_up = "does not begin with mcast-secret-: torch-mcast did not make it";
  const char* const damaged = "the secret's text is damaged: its length or its checksum is wrong";
  for (const auto& [text, why] : {std::pair<std::string, const char*>{"hunter2!", made_up},
                                  {"passwordpasswordpassword", made_up},  // base64 of 18 bytes
                                  {std::string(64, 'a'), made_up},
                                  {"", made_up},
                                  {good.substr(0, good.size() - 1), damaged},
                                  {good + "0", damaged},
                                  {swapped, damaged},
                                  {digit, damaged},
                                  {"mcast-secret-hunter2", damaged},
                                  {std::string(5000, 'a'), made_up}}) {
    const auto none = parse_secret(text);
    ASSERT_FALSE(none.ok()) << text;
    EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
    EXPECT_NE(none.status().message().find(why), std::string::npos) << none.status().message();
    for (const char* const part : {"hunter2", "password", "aaaa"}) {
      EXPECT_EQ(none.status().message().find(part), std::string::npos);
    }
  }
}

// Ranks can check that they have the same secret. Others learn nothing from the check, not even
// that two jobs have the same one.
TEST(Secret, ChecksTellNothingToOthers) {
  const auto make = [](char digit, const char* job) {
    const auto bytes = parse_secret(test::secret_text(digit));
    return JobSecret::make(bytes->bytes(), "a test").value()->for_job(job).value();
  };
  const auto ours = make('a', "a job"), theirs = make('b', "a job"), other = make('a', "another");
  const std::string check = ours->make_check();
  EXPECT_TRUE(make('a', "a job")->fits(check));
  EXPECT_FALSE(theirs->fits(check));
  EXPECT_FALSE(other->fits(check));
  EXPECT_NE(ours->make_check(), check) << "a nonce each";
  EXPECT_FALSE(ours->fits(""));
  EXPECT_FALSE(ours->fits(check + "00"));
  EXPECT_FALSE(ours->fits(std::string(check.size(), '0')));
}

TEST(Arena, PagesAreEmptyInAChildAndNoDumpHasThem) {
  auto pages = SecretPages::make(100);
  ASSERT_TRUE(pages.ok()) << pages.status().to_string();
  std::memset(pages->bytes().data(), 0x5a, 100);
  std::ifstream maps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(pages->bytes().data());
  bool here = false, seen = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (!here || line.rfind("VmFlags:", 0) != 0) continue;
    seen = true;
    EXPECT_NE(line.find(" dd"), std::string::npos) << line;
    EXPECT_NE(line.find(" wf"), std::string::npos) << line;
  }
  EXPECT_TRUE(seen);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const std::byte b : pages->bytes()) {
      if (b != std::byte{0}) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pages->bytes()[99], std::byte{0x5a}) << "the parent keeps them";
}

std::array<std::byte, kKeySize> numbered(size_t n) {
  std::array<std::byte, kKeySize> bytes{};
  std::memcpy(bytes.data(), &n, sizeof n);
  bytes.back() = std::byte{0x5a};
  return bytes;
}

bool is_numbered(const Key& key, size_t n) {
  const auto want = numbered(n);
  return std::memcmp(key.bytes().data(), want.data(), want.size()) == 0;
}

// More than fits into one block.
TEST(Arena, KeysShareTheirPages) {
  constexpr size_t kMany = 1500;
  std::vector<SecretKey> keys;
  for (size_t i = 0; i < kMany; i++) {
    auto key = SecretKey::make(Key(numbered(i)));
    ASSERT_TRUE(key.ok()) << key.status().to_string();
    keys.push_back(std::move(key).value());
  }
  for (size_t i = 0; i < kMany; i++) EXPECT_TRUE(is_numbered(*keys[i], i)) << i;
  const pid_t child = ::fork();
  if (child == 0) {
    for (const SecretKey& key : keys) {
      for (const std::byte b : (*key).bytes()) {
        if (b != std::byte{0}) ::_exit(1);
      }
    }
    // Its own keys are elsewhere; the inherited ones may be freed.
    auto own = SecretKey::make(Key(numbered(7)));
    keys.clear();
    ::_exit(own.ok() && is_numbered(**own, 7) ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);

  Key* const place = &*keys[700];
  keys[700] = SecretKey();
  EXPECT_TRUE(std::all_of(place->bytes().begin(), place->bytes().end(), [](std::byte b) {
    return b == std::byte{0};
  })) << "wiped";
  std::set<Key*> places;
  for (size_t i = 0; i < kMany; i++) {
    if (i == 700) continue;
    EXPECT_TRUE(is_numbered(*keys[i], i)) << i;
    places.insert(&*keys[i]);
  }
  EXPECT_EQ(places.size(), kMany - 1);
  for (size_t i = 0; i < 5000 && places.count(place) == 0; i++) {
    keys.push_back(SecretKey::make(Key()).value());
    places.insert(&*keys.back());
  }
  EXPECT_EQ(places.count(place), 1u) << "its place serves again";
}

TEST(Arena, KeysAreMadeAndGoOnManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t t = 0; t < 4; t++) {
    threads.emplace_back([t, &wrong] {
      for (size_t round = 0; round < 200; round++) {
        std::vector<SecretKey> keys;
        for (size_t i = 0; i < 20; i++) {
          keys.push_back(SecretKey::make(Key(numbered(t << 20 | round << 8 | i))).value());
        }
        for (size_t i = 0; i < 20; i++) {
          if (!is_numbered(*keys[i], t << 20 | round << 8 | i)) wrong++;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Sanitizers replace mlock() by a function that does nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MCAST_OWN_MLOCK
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MCAST_OWN_MLOCK
#endif
#endif
#ifndef MCAST_OWN_MLOCK
// Runs in a child that may not lock memory (root may lock any amount).
TEST(Arena, PagesThatCannotBeLockedAreReportedOnce) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    static int warnings = 0;
    set_log_sink([](int, const char* line) {
      warnings += std::strstr(line, "pages with keys cannot be locked in memory") != nullptr;
    });
    const struct rlimit none {};
    if (!SecretPages::make(1)->locked() || !all_secrets_locked()) ::_exit(1);
    if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0) ::_exit(2);
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(3);
    for (int i = 0; i < 3; i++) {
      auto pages = SecretPages::make(1);
      if (!pages.ok() || pages->locked()) ::_exit(4);
    }
    ::_exit(warnings == 1 && !all_secrets_locked() ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

TEST(ArenaDeathTest, AccessBesideASecretEndsTheProcess) {
  auto pages = SecretPages::make(100);
  volatile std::byte* const at = pages->bytes().data();
  EXPECT_DEATH((void)at[-1], "");
  EXPECT_DEATH((void)at[::sysconf(_SC_PAGESIZE)], "");
}

Config config(const std::string& path) {
  return *Config::resolve({{"security", "sealed"}, {"secret_file", path}, {"job", "a job"}}, {});
}

TEST(Secret, AFileIsReadAnewAndADescriptorOnce) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/secret";
  const auto write = [&](char digit) {
    std::ofstream(path) << test::secret_text(digit);
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  };
  write('1');
  const auto first = find_secret(config(path));
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ((*first)->origin(), path);
  write('2');
  EXPECT_NE((*find_secret(config(path)))->fingerprint(), (*first)->fingerprint());

  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string digits = test::secret_text('1');
  ASSERT_EQ(::write(ends[1], digits.data(), digits.size()), static_cast<ssize_t>(digits.size()));
  ::close(ends[1]);
  const std::string descriptor = "/dev/fd/" + std::to_string(ends[0]);
  const auto piped = find_secret(config(descriptor));
  ASSERT_TRUE(piped.ok()) << piped.status().to_string();
  EXPECT_EQ((*piped)->fingerprint(), (*first)->fingerprint());
  EXPECT_EQ(find_secret(config(descriptor))->get(), piped->get()) << "it is empty by now";
  ::close(ends[0]);
}

TEST(Secret, BadFilesAreRefusedByName) {
  const test::TemporaryFolder folder;
  const auto error = [](const std::string& path) {
    const auto none = find_secret(config(path));
    return none.ok() ? std::string("it was taken") : none.status().message();
  };
  EXPECT_NE(error(folder.path() + "/none").find("No such file"), std::string::npos);
  EXPECT_NE(error(folder.path()).find("is not a regular file"), std::string::npos);
  const std::string path = folder.path() + "/secret";
  std::ofstream(path) << test::secret_text('1');
  ASSERT_EQ(::chmod(path.c_str(), 0602), 0);
  EXPECT_NE(error(path).find("can be written by others"), std::string::npos);
  static int warnings = 0;
  set_log_sink([](int, const char* line) {
    warnings += std::strstr(line, "can be read by others") != nullptr;
  });
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  EXPECT_EQ(error(path), "it was taken");
  EXPECT_EQ(warnings, 1);
  set_log_sink(nullptr);
}

// Runs in a child whose kernel gives no random numbers: a predictable value must not become a key.
TEST(Secret, WithoutRandomNumbersNoKeyIsMade) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/secret";
  std::ofstream(path) << test::secret_text('1');
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  GroupSpec spec;
  spec.config = config(path);
  const auto creation = SecureCreation::make(spec);
  ASSERT_TRUE(creation.ok()) << creation.status().to_string();
  ASSERT_TRUE(LaneIdentity::make(spec.config, (*creation)->secret()).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!test::forbid({SYS_getrandom, SYS_openat})) ::_exit(1);
    const auto refused = [](const Status& status) {
      return status.code() == Code::kUnavailable &&
             status.message().find("the kernel refuses random numbers") != std::string::npos;
    };
    if (!refused(LaneIdentity::make(spec.config, (*creation)->secret()).status())) ::_exit(2);
    RankRecord mine;
    ::_exit(refused((*creation)->describe_mode(mine)) ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Runs in children: a secret that was removed from the environment stays removed.
TEST(Secret, TheEnvironmentLosesItAndAForkedChildHasNone) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kSecretVariable, test::secret_text('7').c_str(), 1);
    const char* const value = std::getenv(kSecretVariable);
    const auto found = find_secret(config(""));
    if (!found.ok() || (*found)->origin() != kSecretVariable) ::_exit(1);
    if (std::getenv(kSecretVariable) != nullptr) ::_exit(2);
    if (std::strlen(value) != 0) ::_exit(3);  // overwritten in place
    if (find_secret(config(""))->get() != found->get()) ::_exit(4);
    const pid_t forked = ::fork();
    if (forked == 0) {
      const auto none = find_secret(config(""));
      const bool named = !none.ok() && none.status().message().find(
                                           "from which this one was forked") != std::string::npos;
      ::_exit(named && !(*found)->ok_here() ? 0 : 1);
    }
    int status = 1;
    if (::waitpid(forked, &status, 0) != forked || status != 0) ::_exit(5);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// In a process that needs no secret. It is not a setting either, so those hold no copy of it.
TEST(Secret, TheEnvironmentLosesItUnread) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::unsetenv(kSecretVariable);
    if (drop_secret_of_environment()) ::_exit(1);
    ::setenv(kSecretVariable, "no secret", 1);
    if (Config::read_environment().count(kSecretVariable) != 0) ::_exit(2);
    const char* const value = std::getenv(kSecretVariable);
    if (!drop_secret_of_environment() || std::getenv(kSecretVariable) != nullptr) ::_exit(3);
    ::_exit(std::strlen(value) == 0 ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace mcast::crypto
