// The words, in one place: users see the same whatever the path.
#include "collective/report.h"

namespace mcast {

Status differs(Sequence sequence, Member self, const std::string& ours, Member other,
               const std::string& theirs) {
  return Status(Code::kMismatch, "operation " + std::to_string(sequence) +
                                     " differs between ranks: rank " + std::to_string(self) +
                                     " called " + ours + ", rank " + std::to_string(other) +
                                     " called " + theirs);
}

Status lengths_differ(Sequence sequence, const wire::Descriptor& what, Member from, uint64_t sent,
                      Member to, uint64_t expected) {
  const std::string name = what.name.empty() ? wire::kind_name(what.kind) : what.name;
  return Status(Code::kMismatch, "operation " + std::to_string(sequence) + " (" + name +
                                     ") differs between ranks: rank " + std::to_string(from) +
                                     " has " + std::to_string(sent) + " bytes for rank " +
                                     std::to_string(to) + ", which expects " +
                                     std::to_string(expected));
}

std::string ranks_text(const std::vector<Member>& ranks) {
  std::string text;
  for (const Member m : ranks) text += (text.empty() ? "" : ", ") + std::to_string(m);
  return text;
}

}  // namespace mcast
