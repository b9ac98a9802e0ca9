// The link of this process to the engine of its host: one socket, two rings, and one thread, which
// reads the engine's completions while no other thread does, and sleeps otherwise.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/local_socket.h"
#include "host_engine/client/client_arenas.h"
#include "host_engine/client/client_creation.h"
#include "host_engine/client/own_memory.h"
#include "host_engine/ipc/control.h"
#include "host_engine/ipc/record.h"
#include "host_engine/ipc/ring.h"
#include "runtime/group.h"

namespace mcast {

// Receives the engine's notifications about one group. Called on any thread, with no lock held.
class ClientListener {
 public:
  virtual ~ClientListener() = default;
  virtual void on_completed(ipc::Completed record) = 0;
  // The engine, or this link to it, is gone: nothing else arrives.
  virtual void on_lost(const Status& why) = 0;
};

// Thread-safe.
class ClientLink {
 public:
  // Connects to the engine at `path`, for at most `patience` (it may be starting), if it is
  // `trusted`. kUnavailable means that no engine replies; other codes, that one does and why it
  // cannot be used.
  static Result<std::shared_ptr<ClientLink>> connect(const std::string& path, Nanos patience,
                                                     const TrustedUser& trusted = {});
  ~ClientLink();

  // Makes a group in the engine: its handle and its first stats (host_engine/ipc/stats_record.h).
  // Nullopt: the engine is being replaced, and the store was not used. Blocks like
  // Engine::create_group(); the store is called on this thread.
  Result<std::optional<ipc::GroupMade>> make_group(const GroupSpec& spec, KeyValueStore& store);
  // If the link is already lost, calls on_lost() at once, on this thread.
  void listen(uint32_t handle, const std::shared_ptr<ClientListener>& listener);  // kept weakly
  void forget(uint32_t handle);

  // Waits while the ring is full; the engine empties it without the network. An error means that
  // the link is lost.
  Status submit(const ipc::Submission& record);
  // Sends a message. `answered` runs once, on any thread, with the reply or with the loss of the
  // link.
  void ask(ipc::Control message, std::function<void(const Result<ipc::Control>&)> answered,
           std::span<const int> descriptors = {});
  Result<ipc::Control> ask(ipc::Control message, Nanos patience,
                           std::span<const int> descriptors = {});
  // Fails if the message is too long; it was not sent then. (A lost link is reported to all
  // listeners.)
  Status tell(const ipc::Control& message, std::span<const int> descriptors = {});

  // Reads completions on this thread until `done()` or `until`.
  bool help(const std::function<bool()>& done, Nanos until);

  ClientArenas& arenas() { return lent_.arenas; }
  OwnMemory& own_memory() { return lent_.own; }
  // The link was lost, but not because the engine ended or said so: the engine may still be
  // copying.
  bool engine_may_run() const;
  Status lost() const;
  // The engine is being replaced: it makes no groups any more.
  bool draining() const;
  pid_t engine_pid() const { return engine_pid_; }
  // The engine's description of itself.
  const ipc::Welcome& welcome() const { return welcome_; }
  // Whether this is the link's own thread.
  bool on_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  // In the child of a fork: closes what it inherited; nothing else of this may be used.
  void abandon_after_fork() noexcept { socket_.abandon(); }

 private:
  explicit ClientLink(LocalSocket socket);
  // The last reference may be dropped in a callback on the link's own thread, which cannot join
  // itself: another thread destroys the link then.
  static void destroy(ClientLink* link);
  Status greet(Nanos deadline);
  void start();
  void run();
  void sleep();
  void watch_engine(Nanos now);
  bool leave();
  bool read_socket();
  bool hand_on_messages();
  void on_message(ipc::Control message);
  // Takes records from the ring and passes them on.
  void deliver();
  // Makes the link's thread end the link. Any thread, whatever locks it holds. `how`: for the
  // error; may be empty.
  void suspect(const std::string& how);
  std::string suspicion() const;
  void note_that_it_may_run();
  // Called on the link's thread.
  void fail(const Status& why);
  Result<uint16_t> offer(const Segment& segment);
  Result<ipc::Memory> offer(const ipc::MemoryOffer& memory, int descriptor);

  ipc::LinkPage& page() const { return *reinterpret_cast<ipc::LinkPage*>(memory_.data()); }

  LocalSocket socket_;
  Segment memory_;
  ipc::Welcome welcome_;
  pid_t engine_pid_ = 0;
  struct {
    ClientArenas arenas;
    OwnMemory own;
  } lent_;
  std::thread thread_;

  std::mutex submitting_;
  std::unique_ptr<ipc::RingWriter> submissions_;
  std::mutex reading_;
  std::unique_ptr<ipc::RingReader> completions_;

  using Answered = std::function<void(const Result<ipc::Control>&)>;
  mutable std::mutex mutex_;  // guards the members below
  uint64_t next_call_ = 1;
  std::map<uint64_t, Answered> calls_;
  std::map<uint64_t, std::shared_ptr<ClientCreation>> creations_;
  std::map<uint32_t, std::weak_ptr<ClientListener>> listeners_;
  struct {
    Status why;            // lost()
    std::string how;       // why it is suspected
    bool may_run = false;  // engine_may_run()
  } end_;
  std::optional<Nanos> drain_limit_;  // set: the engine is being replaced
  std::atomic<bool> ending_{false};

  struct {
    uint64_t last = 0;
    Nanos since = 0;
  } beat_;  // the engine's heartbeat; link's thread only
};

}  // namespace mcast
