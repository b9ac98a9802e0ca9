// Signals are for the threads of whoever uses this library: none of ours takes one.
#pragma once

#include <pthread.h>
#include <signal.h>

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

}  // namespace mcast
