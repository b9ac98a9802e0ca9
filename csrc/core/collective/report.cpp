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

std::string ranks_text(const std::vector<Member>& ranks) {
  std::string text;
  for (const Member m : ranks) text += (text.empty() ? "" : ", ") + std::to_string(m);
  return text;
}

}  // namespace mcast
