// Signals are for the application's threads: no thread of this library handles one.
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

// While it exists no signal is delivered to the calling thread, and never to threads that it
// starts; the mask is restored afterwards, even if a thread cannot be started.
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

// A thread of this library. The system shows the first 15 bytes of its name. Throws if no thread
// can be created. An exception that leaves `run` ends the process, and is logged first.
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
