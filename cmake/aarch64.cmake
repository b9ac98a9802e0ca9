# Toolchain: cross-builds for 64-bit ARM with Debian's compiler; programs run in qemu's user mode.
# tools/aarch64.sh puts the libraries into MCAST_AARCH64_ROOT and uses this file.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MCAST_AARCH64_ROOT)
set(CMAKE_FIND_ROOT_PATH ${MCAST_AARCH64_ROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# For libraries whose headers differ between machines (OpenSSL's): a compiler without --sysroot looks in its own.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${MCAST_AARCH64_ROOT}/usr/include/aarch64-linux-gnu")
# Finds the dependencies of a found library.
set(CMAKE_EXE_LINKER_FLAGS_INIT
    "-Wl,-rpath-link,${MCAST_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu")
