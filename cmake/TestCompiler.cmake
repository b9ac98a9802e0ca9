# Sources of tests are compiled by clang where it is installed, whatever compiles the core: at -O0 it takes two fifths of
# the CPU time that GCC takes at -O1, and half of what GCC takes at -O0. What a test spends its time on is the core,
# which is optimized. CMake has one compiler per language, so a launcher replaces it.

# Sets MCAST_TEST_LAUNCHER to what CMAKE_CXX_COMPILER_LAUNCHER is for tests.
set(MCAST_TEST_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR MCAST_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()
# Those that tools/setup.sh installs.
find_program(MCAST_TEST_CXX NAMES clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19
             DOC "The compiler of test sources; empty: that of the core")
if(MCAST_TEST_CXX AND NOT MCAST_TEST_CXX STREQUAL MCAST_TEST_CXX_TRIED)
  # It takes the standard library of the newest GCC that it finds, whose headers may not be installed.
  file(WRITE ${CMAKE_BINARY_DIR}/joined/try_test_compiler.cpp "#include <concepts>\n#include <string>\n")
  execute_process(COMMAND ${MCAST_TEST_CXX} -std=c++20 -fsyntax-only ${CMAKE_BINARY_DIR}/joined/try_test_compiler.cpp
                  RESULT_VARIABLE failed ERROR_VARIABLE why)
  if(failed)
    message(STATUS "tests are compiled by ${CMAKE_CXX_COMPILER}, since ${MCAST_TEST_CXX} fails: ${why}")
    set(MCAST_TEST_CXX "" CACHE FILEPATH "The compiler of test sources; empty: that of the core" FORCE)
  endif()
  set(MCAST_TEST_CXX_TRIED "${MCAST_TEST_CXX}" CACHE INTERNAL "")
endif()
if(MCAST_TEST_CXX)
  set(MCAST_TEST_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/with_compiler.sh ${MCAST_TEST_CXX}
      ${CMAKE_CXX_COMPILER_LAUNCHER} --)
  # Options of the core's compiler that clang does not have.
  target_compile_options(mcast_test_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-warning-option>)
endif()
