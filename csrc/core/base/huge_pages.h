// Huge pages for large tensors. Where pages are 4 KiB, faulting them in, and reading a peer's
// memory page by page, cost more than the copy itself (docs/decisions.md has the figures).
#pragma once

#include "base/types.h"

namespace mcast {

// Ranges shorter than this are left alone.
inline constexpr size_t kHugeRange = 4u << 20;

// Asks the kernel to back `range` with huge pages as far as whole ones lie in it: what is touched
// from now on at once, and what is there already when the range has been named for the third time
// (buffers that are used again and again; once, about 0.5 ms per MiB). A hint: nothing about the
// contents changes, failure is ignored, and where the administrator has switched huge pages off
// ("never") nothing is done. Any thread.
void advise_huge(ConstBytes range);

}  // namespace mcast
