// Signals are for the threads of whoever uses this library: none of ours takes one.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"

namespace mcast {

// While it lives no signal reaches the calling thread, nor ever one of those that it starts; as
// before afterwards, also where a thread cannot be started.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A thread of ours. Of its name the system shows 15 bytes. Throws where no thread can be had. An
// exception that passes `run` ends the process, and is named first.
inline std::thread named_thread(std::string name, std::function<void()> run) {
  const SignalsBlocked blocked;
  return std::thread([name = std::move(name), run = std::move(run)] {
    (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    try {
      run();
    } catch (const std::exception& error) {
      log(LogLevel::kError, "thread %s: %s; the process ends", name.c_str(), error.what());
      std::abort();
    }
  });
}

}  // namespace mcast
