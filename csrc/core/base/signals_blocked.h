// Signals are for the threads of whoever uses this library: none of ours takes one.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>

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

// A thread of ours. Of its name the system shows 15 bytes. Throws where no thread can be had.
inline std::thread named_thread(std::string name, std::function<void()> run) {
  const SignalsBlocked blocked;
  return std::thread([name = std::move(name), run = std::move(run)] {
    (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    run();
  });
}

}  // namespace mcast
