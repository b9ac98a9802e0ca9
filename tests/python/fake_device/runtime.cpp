// A thread per stream, started with its first task. The delays come from a generator with a fixed
// seed per stream.
#include "runtime.h"

#include <chrono>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <utility>

namespace fake {
namespace {

struct Stream {
  std::deque<std::function<void()>> queue;
  bool busy = false;
};

std::map<int64_t, std::shared_ptr<Stream>>& streams() {
  static auto* const all = new std::map<int64_t, std::shared_ptr<Stream>>;
  return *all;
}

void run(int64_t id, const std::shared_ptr<Stream>& stream) {
  std::minstd_rand random(static_cast<unsigned>(id + 1));
  std::unique_lock lock(device().mutex);
  for (;;) {
    device().changed.wait(lock, [&] { return !stream->queue.empty(); });
    const auto task = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->busy = true;
    lock.unlock();
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
    task();
    lock.lock();
    stream->busy = false;
    device().changed.notify_all();
  }
}

thread_local int64_t t_stream = 0;

}  // namespace

Device& device() {
  static auto* const all = new Device;
  return *all;
}

void enqueue(int64_t id, std::function<void()> task) {
  const std::lock_guard lock(device().mutex);
  std::shared_ptr<Stream>& stream = streams()[id];
  if (!stream) {
    stream = std::make_shared<Stream>();
    std::thread([id, stream] { run(id, stream); }).detach();
  }
  stream->queue.push_back(std::move(task));
  device().changed.notify_all();
}

bool idle(int64_t id) {
  const std::lock_guard lock(device().mutex);
  const auto& stream = streams()[id];
  return !stream || (stream->queue.empty() && !stream->busy);
}

MarkPtr record(int64_t stream) {
  auto mark = std::make_shared<Mark>();
  enqueue(stream, [mark] { device().change([&] { mark->reached = true; }); });
  return mark;
}

void block(const MarkPtr& mark, int64_t stream) {
  enqueue(stream, [mark] { wait(mark); });
}

void wait(const MarkPtr& mark) {
  device().wait_until([&] { return mark->reached; });
}

bool reached(const MarkPtr& mark) {
  const std::lock_guard lock(device().mutex);
  return mark->reached;
}

int64_t current_stream() { return t_stream; }
int64_t exchange_stream(int64_t stream) { return std::exchange(t_stream, stream); }

}  // namespace fake

// The gate, for torch_mcast._C.set_gate().
extern "C" int fake_gate_wait(int64_t stream, int, uint32_t* word, uint32_t value) {
  fake::enqueue(stream, [word, value] {
    while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return 0;
}

extern "C" int fake_gate_signal(int64_t stream, int, uint32_t* word, uint32_t value) {
  fake::enqueue(stream, [word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
  return 0;
}
