// Waiting on the network must never hold Python's lock. This scope releases it if and only if this
// thread has it. Harmless in threads that Python does not know, and before or after the
// interpreter.
#pragma once

#include <Python.h>

namespace mcast::pg {

// The interpreter will shut down soon. Called by the exit handler, in its thread, without Python's
// lock and after all threads of the engine have ended.
void begin_leaving();

// Call it before a thread takes Python's lock, without holding any lock of this library. While the
// interpreter shuts down it returns late, or never; but it does return in the thread that began the
// shutdown, and in threads that Python does not know.
void stay_if_leaving() noexcept;

class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
  }
  // Also if the caller, c10d's binding, has released the lock: it takes it next.
  ~WithoutGil() {
    stay_if_leaving();
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace mcast::pg
