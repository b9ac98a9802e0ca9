// A host engine in a process of its own, with a socket of its own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "host_engine/server/engine_program.h"
#include "support/temporary_folder.h"
#include "support/until.h"

namespace mcast::test {

// The constructor returns when the engine listens.
class EngineProcess {
 public:
  explicit EngineProcess(const service::TenantLimits& limits = {}, uint32_t clients = 64)
      : EngineProcess(options_of(limits, clients)) {}
  // Creates a socket of its own unless the options name one. With `after`, the engine starts once
  // that file exists, and does not listen yet when the constructor returns.
  explicit EngineProcess(service::HostEngineOptions options, const std::string& after = "") {
    if (options.path == kDefaultEnginePath) {
      options.path = folder_.emplace().path() + "/engine.sock";
    }
    path_ = options.path;
    int ready[2];
    if (pipe(ready) != 0) ADD_FAILURE() << "no pipe";
    pid_ = fork();
    if (pid_ == 0) {
      alarm(300);
      if (!after.empty() && !until([&] { return std::filesystem::exists(after); }, after)) _exit(4);
      _exit(service::run_engine(options, [&] {
        if (write(ready[1], "", 1) != 1) _exit(3);
      }));
    }
    close(ready[1]);
    char byte = 0;
    if (after.empty()) {
      EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the engine does not listen";
    }
    close(ready[0]);
  }
  ~EngineProcess() { EXPECT_EQ(end(SIGTERM), 0) << "an engine ends in order"; }
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  const std::string& path() const { return path_; }
  std::string setting() const { return "host:" + path(); }
  pid_t pid() const { return pid_; }
  // Returns true if this process has ended; it need not be reaped yet.
  static bool has_ended(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    return !std::getline(in, text) || text.find(") Z ") != std::string::npos;
  }
  void signal(int number) const { kill(pid_, number); }
  // Waits until all its threads have stopped. The signal alone only requests it.
  void stop() const {
    signal(SIGSTOP);
    const std::string path = "/proc/" + std::to_string(pid_) + "/stat";
    for (std::string text; text.find(") T ") == std::string::npos;) {
      std::ifstream in(path);
      if (!std::getline(in, text)) return;
    }
  }
  // Sends a signal (0: none) and waits. Returns the exit status, or minus the signal that ended the
  // process, or 0 if it was reaped before.
  int end(int number) {
    if (pid_ <= 0) return 0;
    kill(pid_, number);
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static service::HostEngineOptions options_of(const service::TenantLimits& limits,
                                               uint32_t clients) {
    service::HostEngineOptions options;
    options.limits = limits;
    options.clients = clients;
    options.guardian = false;  // signals reach the engine itself
    options.goodbye = 0;
    return options;
  }

  std::optional<TemporaryFolder> folder_;
  std::string path_;
  pid_t pid_ = 0;
};

}  // namespace mcast::test
