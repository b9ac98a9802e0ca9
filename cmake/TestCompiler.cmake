# Clang, if installed, compiles the sources of tests, whatever compiles the core: at -O0 it takes two fifths of
# the CPU time that GCC takes at -O1, and half of GCC's at -O0. Tests spend their time in the core, which is optimized.
# CMake has one compiler per language, so a launcher replaces it.

# Sets MCAST_TEST_LAUNCHER, the value of CMAKE_CXX_COMPILER_LAUNCHER for tests.
set(MCAST_TEST_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR MCAST_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()
# The versions that tools/setup.sh installs.
find_program(MCAST_TEST_CXX NAMES clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19
             DOC "The compiler of test sources; empty: that of the core")
if(MCAST_TEST_CXX AND NOT MCAST_TEST_CXX STREQUAL MCAST_TEST_CXX_TRIED)
  # Clang uses the standard library of the newest GCC that it finds, whose headers may not be installed.
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
  # Ignores options of the core's compiler that clang lacks.
  target_compile_options(mcast_test_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-warning-option>)
endif()
