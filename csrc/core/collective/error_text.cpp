// Error texts in one place, so that users read the same on every path.
#include "collective/error_text.h"

#include "base/errors.h"

namespace mcast {

Status differs(Sequence sequence, Member self, const std::string& ours, Member other,
               const std::string& theirs) {
  return make_error<ErrorId::operation_differs>(sequence, self, ours, other, theirs);
}

Status lengths_differ(Sequence sequence, const wire::Descriptor& what, Member from, uint64_t sent,
                      Member to, uint64_t expected) {
  const std::string name = what.name.empty() ? wire::kind_name(what.kind) : what.name;
  return make_error<ErrorId::lengths_differ>(sequence, name, from, sent, to, expected);
}

std::string ranks_text(const std::vector<Member>& ranks) {
  std::string text;
  for (const Member m : ranks) text += (text.empty() ? "" : ", ") + std::to_string(m);
  return text;
}

}  // namespace mcast
