// Waiting on the network must never hold Python's lock. A scope that gives it up, if and only if
// this thread has it. Harmless in threads Python does not know, and before or after the
// interpreter.
#pragma once

#include <Python.h>

namespace mcast::pg {

class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) state_ = PyEval_SaveThread();
  }
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace mcast::pg
