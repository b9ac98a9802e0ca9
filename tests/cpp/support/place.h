// The folder of the sources of this program, for tests that read sources or files beside them.
#pragma once

namespace mcast::test {

extern const char* const kSourceDir;

}  // namespace mcast::test
