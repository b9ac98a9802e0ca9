// How a thread leaves this library while the interpreter goes. Before Python 3.14 a thread that
// asks for Python's lock once the interpreter is being taken apart is ended by pthread_exit, and on
// its way out that meets destructors which may not throw, pybind11's that takes the lock among
// them: the process ends by std::terminate. So whoever comes out of a call after `begin_leaving`
// waits until it is known whether the interpreter goes, and if it does stays where it is, as
// Python 3.14 has it. A thread that came out just before has some time for Python's lock; where the
// machine is so busy that this was not enough, it stays in std::terminate.
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

// Exit handlers that run after ours may wait for a thread that they have started: it goes on then.
constexpr auto kHandlersPatience = 1s;
// A thread that came out just before has Python's lock by then: nobody else has it meanwhile.
constexpr auto kRecently = 200ms, kHandover = 20ms;

std::atomic<bool> leaving{false};
std::atomic<Clock::rep> last_out{Clock::time_point::min().time_since_epoch().count()};
std::thread::id leaver;  // written before `leaving`
// Whoever imported this, by rule the main thread, which stays until the interpreter goes.
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

// pthread_exit comes here without an exception of C++.
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
  // Looked at again: it is seen here, or this thread by whoever begins to leave.
  if (!leaving.load() || std::this_thread::get_id() == leaver) return;
  for (const auto until = Clock::now() + kHandlersPatience; !finalizing();) {
    if (Clock::now() >= until) return;
    std::this_thread::sleep_for(1ms);
  }
  stay();
}

}  // namespace mcast::pg
