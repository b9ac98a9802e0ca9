// An engine of the host in a process of its own, at a socket of its own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "service/host_engine.h"

namespace mcast::test {

// Listens once it is made.
class EngineProcess {
 public:
  explicit EngineProcess(const service::TenantLimits& limits = {}, uint32_t clients = 64) {
    folder_ = (std::filesystem::temp_directory_path() / "mcast-engine-XXXXXX").string();
    if (mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << "no folder";
    int ready[2];
    if (pipe(ready) != 0) ADD_FAILURE() << "no pipe";
    pid_ = fork();
    if (pid_ == 0) {
      sigset_t signals;
      sigemptyset(&signals);
      sigaddset(&signals, SIGTERM);
      pthread_sigmask(SIG_BLOCK, &signals, nullptr);
      alarm(300);
      service::HostEngineOptions options;
      options.path = path();
      options.limits = limits;
      options.clients = clients;
      int number = 0;
      {
        auto engine = service::HostEngine::start(options);
        if (!engine.ok() || write(ready[1], "", 1) != 1) _exit(3);
        sigwait(&signals, &number);
      }
      _exit(0);
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the engine does not listen";
    close(ready[0]);
  }
  ~EngineProcess() {
    EXPECT_EQ(end(SIGTERM), 0) << "an engine ends in order";
    std::filesystem::remove_all(folder_);
  }
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  std::string path() const { return folder_ + "/engine.sock"; }
  std::string setting() const { return "host:" + path(); }
  void signal(int number) const { kill(pid_, number); }
  // Its exit status, or minus the signal that it died of; 0 if it has been asked before.
  int end(int number) {
    if (pid_ <= 0) return 0;
    kill(pid_, number);
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  std::string folder_;
  pid_t pid_ = 0;
};

}  // namespace mcast::test
