// The link of this process to the engine of its host: one socket, two rings, one thread that sleeps
// unless nobody else reads what the engine tells.
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

#include "engine/client_arenas.h"
#include "engine/client_creation.h"
#include "engine/group.h"
#include "engine/own_memory.h"
#include "host/local_socket.h"
#include "ipc/control.h"
#include "ipc/record.h"
#include "ipc/ring.h"

namespace mcast {

// Who hears what the engine tells of one group. Called on any thread, with no lock held.
class ClientEar {
 public:
  virtual ~ClientEar() = default;
  virtual void on_completed(ipc::Completed record) = 0;
  // The engine is gone, or this link to it: nothing comes any more.
  virtual void on_lost(const Status& why) = 0;
};

// Thread-safe.
class ClientLink {
 public:
  // Connects to the engine at `path`, for at most `patience` (it may just be starting), if it is
  // `trusted`. kUnavailable says that none answers; other codes that one does, and why it cannot be
  // used.
  static Result<std::shared_ptr<ClientLink>> connect(const std::string& path, Nanos patience,
                                                     const TrustedUser& trusted = {});
  ~ClientLink();

  // A group in the engine: its handle and its first stats (engine/stats_record.h). None: the engine
  // is being replaced; the store was not asked. Blocks as Engine::create_group() does; the store is
  // asked on this thread.
  Result<std::optional<ipc::GroupMade>> make_group(const GroupSpec& spec, KeyValueStore& store);
  // Where the link is lost already it is told here, on this thread.
  void listen(uint32_t handle, const std::shared_ptr<ClientEar>& ear);  // which is kept weakly
  void forget(uint32_t handle);

  // Waits while the ring is full: the engine empties it without the network. Not ok: the link is
  // lost.
  Status submit(const ipc::Submission& record);
  // Sends a message; the answer, or that the link is lost, comes by `answered`, once, on any
  // thread.
  void ask(ipc::Control message, std::function<void(const Result<ipc::Control>&)> answered,
           std::span<const int> descriptors = {});
  Result<ipc::Control> ask(ipc::Control message, Nanos patience,
                           std::span<const int> descriptors = {});
  // Not ok: it is too long for a message, and was not sent. (Where the link is lost all are told.)
  Status tell(const ipc::Control& message, std::span<const int> descriptors = {});

  // Reads completions on this thread until `done()` or `until`.
  bool help(const std::function<bool()>& done, Nanos until);

  ClientArenas& arenas() { return lent_.arenas; }
  OwnMemory& own_memory() { return lent_.own; }
  // Lost, and not by the engine's end or word: it may still copy.
  bool engine_may_run() const;
  Status lost() const;
  // The engine is being replaced: it makes no groups any more.
  bool draining() const;
  pid_t engine_pid() const { return engine_pid_; }
  // What it has said of itself.
  const ipc::Welcome& welcome() const { return welcome_; }
  // Whether this is the link's own thread.
  bool on_own_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  // In the child of a fork: closes what it inherited; nothing else of this may be used.
  void abandon_after_fork() noexcept { socket_.abandon(); }

 private:
  explicit ClientLink(LocalSocket socket);
  // The last reference may be let go of in a callback on the link's own thread, which cannot wait
  // for itself: another one does it then.
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
  // Takes what the ring holds and hands it on.
  void deliver();
  // Ends the link, by its thread; any thread, whatever it holds. `how`: for the error; may be
  // empty.
  void suspect(const std::string& how);
  std::string suspicion() const;
  void note_that_it_may_run();
  // On the link's thread.
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
  mutable std::mutex mutex_;  // of what follows
  uint64_t next_call_ = 1;
  std::map<uint64_t, Answered> calls_;
  std::map<uint64_t, std::shared_ptr<ClientCreation>> creations_;
  std::map<uint32_t, std::weak_ptr<ClientEar>> ears_;
  struct {
    Status why;            // lost()
    std::string how;       // it is suspected
    bool may_run = false;  // engine_may_run()
  } end_;
  std::optional<Nanos> drain_limit_;  // there is one: the engine is being replaced
  std::atomic<bool> ending_{false};

  struct {
    uint64_t last = 0;
    Nanos since = 0;
  } beat_;  // the engine's; the link's thread only
};

}  // namespace mcast
