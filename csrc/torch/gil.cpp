// Handles threads that leave this library while the interpreter shuts down. Before Python 3.14 a
// thread that requests Python's lock during that time is ended by pthread_exit; on its way out it
// runs destructors that may not throw, among them pybind11's that takes the lock, and the process
// ends by std::terminate. So a thread that returns from a call after `begin_leaving` waits until it
// is known whether the interpreter shuts down, and if it does, blocks permanently, as in Python
// 3.14. A thread that returned just before has some time to get Python's lock; if the machine is so
// busy that this was not enough, it blocks in std::terminate.
#include "gil.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>

namespace mcast::pg {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Exit handlers that run after ours may wait for a thread that they have started: it continues
// then.
constexpr auto kHandlersPatience = 1s;
// A thread that returned just before has Python's lock by then: no other thread takes it meanwhile.
constexpr auto kRecently = 200ms, kHandover = 20ms;

std::atomic<bool> leaving{false};
std::atomic<Clock::rep> last_out{Clock::time_point::min().time_since_epoch().count()};
std::thread::id leaver;  // written before `leaving`
// The thread that imported this, by convention the main thread, which stays until the interpreter
// shuts down.
const std::thread::id importer = std::this_thread::get_id();

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

[[noreturn]] void stay() noexcept {
  for (;;) std::this_thread::sleep_for(1h);
}

std::terminate_handler terminate_before = nullptr;  // written before `leaving`

// pthread_exit reaches this without a C++ exception.
[[noreturn]] void stay_instead_of_terminating() noexcept {
  if (finalizing() && std::this_thread::get_id() != leaver && !std::current_exception()) stay();
  terminate_before();
  std::abort();  // a handler may not return
}

}  // namespace

void begin_leaving() {
  if (leaving.load()) return;
  leaver = std::this_thread::get_id();
  terminate_before = std::set_terminate(&stay_instead_of_terminating);
  leaving.store(true);
  const Clock::time_point last{Clock::duration(last_out.load())};
  if (last > Clock::now() - kRecently) std::this_thread::sleep_for(kHandover);
}

void stay_if_leaving() noexcept {
  if (PyGILState_GetThisThreadState() == nullptr) return;  // does not take the lock
  if (!leaving.load() && std::this_thread::get_id() != importer) {
    last_out.store(Clock::now().time_since_epoch().count());
  }
  // Checked again: either this thread sees it here, or the thread that begins to leave sees this
  // one.
  if (!leaving.load() || std::this_thread::get_id() == leaver) return;
  for (const auto until = Clock::now() + kHandlersPatience; !finalizing();) {
    if (Clock::now() >= until) return;
    std::this_thread::sleep_for(1ms);
  }
  stay();
}

}  // namespace mcast::pg
