// Where the sources lie that this program was made of: for tests that read them, or files beside
// them.
#pragma once

namespace mcast::test {

extern const char* const kSourceDir;

}  // namespace mcast::test
