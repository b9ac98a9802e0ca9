// Huge pages for large tensors. Where pages are 4 KiB, faulting them in, and reading a peer's
// memory page by page, cost more than the copy itself (docs/decisions.md has the figures). All are
// hints: nothing about the contents changes, failure is ignored, and where the administrator has
// switched huge pages off ("never") nothing is done. Any thread.
#pragma once

#include "base/types.h"

namespace mcast {

// Ranges shorter than this are left alone.
inline constexpr size_t kHugeRange = 4u << 20;

// Asks the kernel to back with huge pages what is touched from now on, as far as whole ones lie in
// `range`. Cheap.
void advise_huge(ConstBytes range);
// Copies what is there already into huge pages (Linux 6.1). 0.5 to 2.5 ms per MiB: for memory that
// stays allocated and is used again and again.
void collapse_huge(ConstBytes range);

}  // namespace mcast
