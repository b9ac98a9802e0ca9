// Waiting on the network must never hold Python's lock. A scope that gives it up, if and only if
// this thread has it. Harmless in threads Python does not know, and before or after the
// interpreter.
#pragma once

#include <Python.h>

namespace mcast::pg {

// The interpreter goes soon. By the exit handler, in its thread, without Python's lock and
// after all threads of the engine have ended.
void begin_leaving();

// To be called where a thread is about to take Python's lock, holding no lock of ours. While the
// interpreter goes it returns late, or never: not in the thread that began it, and not in threads
// that Python does not know.
void stay_if_leaving() noexcept;

class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
  }
  // Also where the caller, c10d's binding, has given the lock up: it takes it next.
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
