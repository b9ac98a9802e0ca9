// Huge pages for large tensors. With pages of 4 KiB, faulting them in, and reading a peer's memory
// page by page, cost more than the copy itself (docs/decisions.md has the figures). All functions
// are hints: contents never change, failure is ignored, and they have no effect if the
// administrator has switched huge pages off ("never"). Any thread.
#pragma once

#include "base/types.h"

namespace mcast {

// Shorter ranges are not changed.
inline constexpr size_t kHugeRange = 4u << 20;

// Asks the kernel to use huge pages for memory that is touched from now on, as far as whole ones
// fit into `range`. Cheap.
void advise_huge(ConstBytes range);
// Copies pages that are populated already into huge pages (Linux 6.1). 0.5 to 2.5 ms per MiB: for
// memory that stays allocated and is used repeatedly.
void collapse_huge(ConstBytes range);

}  // namespace mcast
