// A thread per stream, started with its first task. The delays come from a generator with a fixed
// seed per stream.
#include "runtime.h"

#include <chrono>
#include <cstdlib>
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

// The queue of a stream.
int64_t queue_of(int64_t stream) {
  static const char* const text = std::getenv("FAKE_DEVICE_QUEUES");
  static const int64_t queues = text == nullptr ? 0 : std::atoll(text);
  return queues > 0 ? stream % queues : stream;
}

void run(int64_t id, const std::shared_ptr<Stream>& stream) {
  std::minstd_rand random(static_cast<unsigned>(id + 1));
  std::unique_lock lock(device().mutex);
  for (;;) {
    device().changed.wait(lock, [&] { return !stream->queue.empty() && !device().faulted; });
    const auto task = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->busy = true;
    device().changed.notify_all();
    lock.unlock();
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
    task();
    lock.lock();
    stream->busy = false;
    device().changed.notify_all();
  }
}

thread_local int64_t t_stream = 0;
thread_local int t_capture_mode = 0;  // CUDA's numbers: 0 global, 2 relaxed

// A call that queries the progress of the device.
void asked(std::unique_lock<std::mutex>& lock) {
  Device& d = device();
  d.asked++;
  d.blocked++;
  d.changed.wait(lock, [&] { return !d.block_asking; });
  d.blocked--;
  if (d.faulted) throw Fault();
  if (d.capturing && t_capture_mode != 2) d.broken_captures++;
}

}  // namespace

Device& device() {
  static auto* const all = new Device;
  return *all;
}

void enqueue(int64_t id, std::function<void()> task) {
  std::unique_lock lock(device().mutex);
  if (id == device().captured) device().captured_commands++;
  id = queue_of(id);
  std::shared_ptr<Stream> stream = streams()[id];
  if (!stream) {
    stream = streams()[id] = std::make_shared<Stream>();
    std::thread([id, stream] { run(id, stream); }).detach();
  }
  device().changed.wait(lock, [&] { return stream->queue.size() < kDepth || device().faulted; });
  if (device().faulted) throw Fault();
  stream->queue.push_back(std::move(task));
  device().changed.notify_all();
}

bool idle(int64_t id) {
  std::unique_lock lock(device().mutex);
  asked(lock);
  const auto& stream = streams()[queue_of(id)];
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

void sync(const MarkPtr& mark) {
  std::unique_lock lock(device().mutex);
  asked(lock);
  device().changed.wait(lock, [&] { return mark->reached || device().faulted; });
  if (device().faulted) throw Fault();
}

bool reached(const MarkPtr& mark) {
  std::unique_lock lock(device().mutex);
  asked(lock);
  return mark->reached;
}

int64_t current_stream() { return t_stream; }
int64_t exchange_stream(int64_t stream) { return std::exchange(t_stream, stream); }

}  // namespace fake

namespace {

constexpr int kFaultCode = 700;

int enqueue_or_code(int64_t stream, std::function<void()> task) {
  try {
    fake::enqueue(stream, std::move(task));
    return 0;
  } catch (const fake::Fault&) {
    return kFaultCode;
  }
}

}  // namespace

// The gate, for torch_mcast._C.set_gate().
extern "C" int fake_gate_wait(int64_t stream, int, uint32_t* word, uint32_t value) {
  fake::device().change([] { fake::device().gates++; });
  return enqueue_or_code(stream, [word, value] {
    while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
}

extern "C" int fake_gate_signal(int64_t stream, int, uint32_t* word, uint32_t value) {
  return enqueue_or_code(stream,
                         [word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
}

extern "C" int fake_is_captured(int64_t stream, int, int* captured) {
  const std::lock_guard lock(fake::device().mutex);
  *captured = stream == fake::device().captured ? 1 : 0;
  return 0;
}

extern "C" int fake_capture_mode(int* mode) {
  *mode = std::exchange(fake::t_capture_mode, *mode);
  return 0;
}
