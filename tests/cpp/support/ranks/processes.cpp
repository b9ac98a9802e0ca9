// Fork, run, reap. The parent of these tests never makes an engine, so every child starts clean.
#include "support/ranks/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "crypto/secret.h"
#include "support/ranks/arena_new.h"
#include "support/reach.h"
#include "support/secret_text.h"
#include "support/temporary_folder.h"

namespace mcast::test {

std::string DirectoryStore::path(const std::string& key) const {
  std::string flat = prefix_ + key;
  for (char& c : flat) {
    if (c == '/') c = '_';
  }
  return directory_ + "/" + flat;
}

Status DirectoryStore::set(const std::string& key, const std::string& value) {
  const std::string target = path(key), temporary = target + ".tmp" + std::to_string(getpid());
  {
    std::ofstream out(temporary);
    out << value;
    if (!out) return Status(Code::kSystem, "cannot write " + temporary);
  }
  if (rename(temporary.c_str(), target.c_str()) != 0) return Status::system(errno, "rename");
  return {};
}

Result<std::vector<std::string>> DirectoryStore::multi_get(const std::vector<std::string>& keys,
                                                           Nanos timeout) {
  const Nanos deadline = monotonic_now() + timeout;
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    while (access(path(key).c_str(), R_OK) != 0) {
      if (monotonic_now() > deadline) return Status(Code::kTimeout, "no key " + key);
      std::this_thread::yield();
    }
    std::ifstream in(path(key));
    std::stringstream text;
    text << in.rdbuf();
    values.push_back(text.str());
  }
  return values;
}

namespace {

// Becomes MCAST_TEST_USER if that is set; the memory of the process stays readable.
void become_the_user() {
  const char* const user = getenv("MCAST_TEST_USER");
  const uid_t id = user == nullptr ? geteuid() : static_cast<uid_t>(std::stoul(user));
  if (id == geteuid()) return;
  const bool done = setresgid(id, id, id) == 0 && setresuid(id, id, id) == 0 &&
                    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
  EXPECT_TRUE(done) << "cannot be user " << user;
}

// A rank that takes longer hangs, however busy the machine is: in the gate these programs run at
// nice 19 beside others.
constexpr unsigned kHangs = 240;

}  // namespace

std::vector<Ended> run_ranks(uint32_t ranks, unsigned seconds,
                             const std::function<bool(Member, DirectoryStore&)>& body) {
  const TemporaryFolder directory;
  (void)chmod(directory.path().c_str(), 0777);  // ranks may become other users
  std::vector<pid_t> children;
  fflush(nullptr);
  for (uint32_t r = 0; r < ranks; r++) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(std::max(seconds, kHangs));
      if (getenv("MCAST_TEST_ARENAS") != nullptr) new_in_arenas();
      become_the_user();
      DirectoryStore store(directory.path());
      const bool good = body(static_cast<Member>(r), store);
      Engine::instance().shutdown();
      write_reach();
      fflush(nullptr);
      _exit(good && !testing::Test::HasFailure() ? 0 : 1);
    }
    children.push_back(pid);
  }
  std::vector<Ended> ends;
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    Ended e;
    if (WIFEXITED(status)) e.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) e.signal = WTERMSIG(status);
    ends.push_back(e);
  }
  return ends;
}

std::optional<GroupSpec> group_spec(const std::string& name, Member rank, uint32_t ranks,
                                    const std::map<std::string, std::string>& settings) {
  GroupSpec spec;
  spec.name = name;
  spec.rank = rank;
  spec.size = ranks;
  spec.timeout = 30 * kSecond;
  auto all = settings;
  all.emplace("shared_memory", "off");
  all.emplace("engine_memory", engine_memory());
  if (const char* engine = std::getenv("MCAST_TEST_ENGINE")) all.emplace("engine", engine);
  if (const char* mode = std::getenv("MCAST_TEST_SECURITY")) {
    all.emplace("security", mode);
    all.emplace("job", "tests");
    // The process's first group removes it from the environment.
    static const int set = ::setenv(crypto::kSecretVariable, secret_text('5').c_str(), 1);
    EXPECT_EQ(set, 0);
  }
  auto config = Config::resolve(all, {});
  if (!config.ok()) {
    ADD_FAILURE() << config.status().to_string();
    return std::nullopt;
  }
  spec.config = config.value();
  return spec;
}

std::shared_ptr<Group> make_group(const std::string& name, Member rank, uint32_t ranks,
                                  KeyValueStore& store,
                                  const std::map<std::string, std::string>& settings) {
  const auto spec = group_spec(name, rank, ranks, settings);
  if (!spec) return nullptr;
  auto group = Engine::instance().create_group(*spec, store);
  if (!group.ok()) {
    ADD_FAILURE() << "rank " << rank << ": " << group.status().to_string();
    return nullptr;
  }
  // Its counters are read when the test releases it.
  return {group.value().get(), [held = group.value()](const Group* g) {
            const auto counted = g->stats().counters;
            for (size_t c = 0; c < counted.size(); c++) {
              add_reach(static_cast<Counter>(c), counted[c].second);
            }
          }};
}

namespace {

Slice whole(std::vector<std::byte>& data) {
  return {std::make_shared<Region>(data.data(), data.size(), nullptr), 0, data.size()};
}

template <typename Post>
Status wait_for(Post post) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto future = promise->get_future();
  PostOptions options;
  options.done = [promise](const Status& status) { promise->set_value(status); };
  Result<Sequence> sequence = post(std::move(options));
  if (!sequence.ok()) return sequence.status();
  return future.get();
}

}  // namespace

Status broadcast(Group& group, std::vector<std::byte>& data, Member root, Nanos timeout) {
  return wait_for([&](PostOptions options) {
    options.timeout = timeout;
    return group.post_broadcast(whole(data), root, std::move(options));
  });
}

Status allgather(Group& group, std::vector<std::byte>& data, Nanos timeout) {
  const Slice all = whole(data);
  const size_t block = data.size() / group.size();
  std::vector<Slice> outputs;
  for (Member r = 0; r < group.size(); r++) outputs.push_back({all.region, r * block, block});
  return wait_for([&](PostOptions options) {
    options.timeout = timeout;
    const Slice input = outputs[group.rank()];
    return group.post_allgather(input, std::move(outputs), std::move(options));
  });
}

Status barrier(Group& group, Nanos timeout) {
  return wait_for([&](PostOptions options) {
    options.timeout = timeout;
    return group.post_barrier(std::move(options));
  });
}

uint64_t counter(const Group& group, const std::string& name) {
  for (const auto& [n, value] : group.stats().counters) {
    if (name == n) return value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

size_t open_descriptors() {
  size_t n = 0;
  for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1;
  return n;
}

}  // namespace mcast::test
