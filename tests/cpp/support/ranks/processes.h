// Ranks as forked processes: runs a function in each, with a rendezvous directory, and collects how
// they ended. A rank that hangs is killed by its own alarm.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"

namespace mcast::test {

// A store in a directory: one file per key, renamed into place.
class DirectoryStore final : public KeyValueStore {
 public:
  explicit DirectoryStore(std::string directory) : directory_(std::move(directory)) {}
  Status set(const std::string& key, const std::string& value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  // The same directory with other keys, for a second group or incarnation.
  DirectoryStore scoped(const std::string& prefix) const {
    DirectoryStore s(directory_);
    s.prefix_ = prefix_ + prefix + ".";
    return s;
  }

 private:
  std::string path(const std::string& key) const;
  std::string directory_, prefix_;
};

struct Ended {
  int exit_code = -1;  // 0: the body returned true and no expectation failed
  int signal = 0;
};

// Runs body(rank, store) in `ranks` forked processes. A process that hangs is ended after
// `seconds`, but not before some minutes.
std::vector<Ended> run_ranks(uint32_t ranks, unsigned seconds,
                             const std::function<bool(Member rank, DirectoryStore& store)>& body);

// In a rank: the parameters of a group of `ranks` with these settings; none if the settings are
// wrong, which fails the test.
std::optional<GroupSpec> group_spec(const std::string& name, Member rank, uint32_t ranks,
                                    const std::map<std::string, std::string>& settings);
// In a rank: makes a group of `ranks` with these settings; prints the error and returns null on
// failure.
std::shared_ptr<Group> make_group(const std::string& name, Member rank, uint32_t ranks,
                                  KeyValueStore& store,
                                  const std::map<std::string, std::string>& settings = {});

// Posts and waits.
Status broadcast(Group& group, std::vector<std::byte>& data, Member root,
                 Nanos timeout = 60 * kSecond);
Status allgather(Group& group, std::vector<std::byte>& data, Nanos timeout = 60 * kSecond);
Status barrier(Group& group, Nanos timeout = 60 * kSecond);
uint64_t counter(const Group& group, const std::string& name);
// Number of open descriptors of this process.
size_t open_descriptors();

}  // namespace mcast::test
