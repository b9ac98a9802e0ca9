// Directory through which ranks that one process runs for others (an engine of the host) find each
// other's memory: by tokens, which travel in the rendezvous. A rendezvous record, which a client
// may forge, then names no process, descriptor or address; an entry is found only with its token,
// only as the rank of the group that it states, and once by each other rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/status.h"
#include "base/types.h"
#include "shm/peer_registry.h"
#include "shm/published.h"

namespace mcast {

// Thread-safe.
class HostDirectory {
 public:
  struct Entry {
    std::string group;
    Member rank = 0;
    uint32_t size = 0;
    HostAddress address;  // in terms of this process
    std::shared_ptr<Published> published;
  };
  // Keeps an entry as long as it exists; may outlive the directory.
  class Ticket {
   public:
    Ticket(std::weak_ptr<HostDirectory> directory, uint64_t token)
        : directory_(std::move(directory)), token_(token) {}
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    uint64_t token() const { return token_; }

   private:
    const std::weak_ptr<HostDirectory> directory_;
    const uint64_t token_;
  };

  static std::unique_ptr<Ticket> enter(const std::shared_ptr<HostDirectory>& directory,
                                       Entry entry);
  // Returns what `asked` (group, rank, size) has entered, for rank `by` of the same group.
  Result<Entry> find(uint64_t token, const Entry& asked, Member by);

 private:
  struct Place {
    Entry entry;
    std::set<Member> found_by;
  };
  std::mutex mutex_;
  std::map<uint64_t, Place> places_;
};

}  // namespace mcast
