// The name of one operation in messages. The text is made only if there is a message: that takes
// longer than the rest of the adapter's work for a small operation.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>

namespace mcast::pg {

struct CallName {
  const char* op = "";  // static
  uint64_t sequence = 0;
  std::shared_ptr<const std::string> place;  // " on rank 1 of 4 in group 'x'"

  std::string text() const {
    return std::string("mcast ") + op + " #" + std::to_string(sequence) + *place;
  }
  friend std::ostream& operator<<(std::ostream& out, const CallName& name) {
    return out << name.text();
  }
};

}  // namespace mcast::pg
