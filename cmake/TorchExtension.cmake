# The extension module torch_mcast._C, built against the torch that is installed for Python3_EXECUTABLE.
#
# Paths come from that torch itself instead of find_package(Torch): a CUDA build of torch would make
# the latter look for a CUDA toolkit, which is not needed here. This does not import torch.
# The result works with one minor version of torch (the virtual functions of c10d::Backend change
# with nearly every one), so _build_info.py records the version and the loader compares it.

set(MCAST_EXTENSION_SUFFIX "" CACHE STRING "End of the extension's name, if CMake cannot know it: for another machine")
set(MCAST_EXTENSION_DIR ${CMAKE_SOURCE_DIR}/torch_mcast CACHE PATH "Where _C and _build_info.py go")

find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
set(torch_question "
import importlib.util, os, re, sys
spec = importlib.util.find_spec('torch')
if spec is None or spec.origin is None:
    sys.exit('torch is not installed for ' + sys.executable)
root = os.path.dirname(spec.origin)
text = open(os.path.join(root, 'version.py')).read()
print(root, re.search(r'__version__ = .(.+).', text).group(1), sep=';', end='')")
execute_process(COMMAND ${Python3_EXECUTABLE} -c "${torch_question}"
                OUTPUT_VARIABLE torch_facts RESULT_VARIABLE torch_failed ERROR_VARIABLE torch_error)
if(torch_failed)
  # pip hides installed packages from a build by these variables. The build uses the installed torch, not
  # one that pip would fetch for the build.
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE
                  ${Python3_EXECUTABLE} -c "${torch_question}"
                  OUTPUT_VARIABLE torch_facts RESULT_VARIABLE torch_failed ERROR_VARIABLE torch_error)
endif()
if(torch_failed)
  string(STRIP "${torch_error}" torch_error)
  message(FATAL_ERROR "MCAST_BUILD_TORCH: ${torch_error}. Install torch first, then: pip install --no-build-isolation .")
endif()
list(GET torch_facts 0 MCAST_TORCH_ROOT)
list(GET torch_facts 1 MCAST_TORCH_VERSION)
message(STATUS "torch ${MCAST_TORCH_VERSION} in ${MCAST_TORCH_ROOT}")
if(MCAST_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torch-mcast needs torch 2.11 or later, found ${MCAST_TORCH_VERSION}")
endif()

option(MCAST_TORCH_QUICK "The extension in parts with torch's headers compiled once, not optimised: edits build fast" OFF)
file(GLOB MCAST_TORCH_SOURCES CONFIGURE_DEPENDS csrc/torch/*.cpp csrc/torch/device/*.cpp)
if(NOT MCAST_HOST_ENGINE)
  list(FILTER MCAST_TORCH_SOURCES EXCLUDE REGEX "/engine_store\\.cpp$")
endif()
# Joined into one source, since most of the time goes into torch's headers.
set(joined 0)
if(MCAST_TORCH_QUICK)
  set(joined 1)
endif()
mcast_join(MCAST_TORCH_SOURCES mcast_torch ${joined} ${MCAST_TORCH_SOURCES})
add_library(mcast_torch_code OBJECT ${MCAST_TORCH_SOURCES})
# Without the core: a target that waits for this one would also wait for the core's archive.
target_link_libraries(mcast_torch_code PRIVATE Python3::Module mcast_flags)
if(MCAST_TORCH_QUICK)
  target_precompile_headers(mcast_torch_code PRIVATE
    <torch/csrc/utils/pybind.h> <torch/csrc/Exceptions.h> <ATen/ATen.h> <c10/core/impl/VirtualGuardImpl.h>
    <torch/csrc/distributed/c10d/ProcessGroup.hpp> <torch/csrc/distributed/c10d/PrefixStore.hpp>
    <torch/csrc/distributed/c10d/ParamCommsUtils.hpp> <runtime/engine.h>)
  target_compile_options(mcast_torch_code PRIVATE -O0 -g0 -Wno-error)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  # This code checks and passes on arguments, without loops over bytes: -O1 compiles torch's headers in two thirds
  # of -O2's time, and no operation is slower.
  target_compile_options(mcast_torch_code PRIVATE -O1 -finline-small-functions)
endif()
# It takes longest to compile, so it should start first. Ninja from 1.12 on starts the target with the longest
# chain of dependents first: an empty source that waits for this object makes its chain the longest.
set(MCAST_TORCH_LAST ${CMAKE_BINARY_DIR}/joined/extension.cpp)
add_custom_command(OUTPUT ${MCAST_TORCH_LAST} COMMAND ${CMAKE_COMMAND} -E touch ${MCAST_TORCH_LAST}
                   DEPENDS $<TARGET_OBJECTS:mcast_torch_code> VERBATIM)
add_library(mcast_torch_last OBJECT ${MCAST_TORCH_LAST})
Python3_add_library(mcast_torch MODULE WITH_SOABI $<TARGET_OBJECTS:mcast_torch_code>
                    $<TARGET_OBJECTS:mcast_torch_last>)
set_target_properties(mcast_torch PROPERTIES OUTPUT_NAME _C LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY
                      ${MCAST_EXTENSION_DIR})
if(MCAST_EXTENSION_SUFFIX)
  set_target_properties(mcast_torch PROPERTIES SUFFIX ${MCAST_EXTENSION_SUFFIX})
endif()
target_include_directories(mcast_torch_code PRIVATE ${CMAKE_SOURCE_DIR}/csrc/core ${CMAKE_SOURCE_DIR}/csrc
                           ${CMAKE_SOURCE_DIR}/csrc/torch)
target_include_directories(mcast_torch_code SYSTEM PRIVATE ${MCAST_TORCH_ROOT}/include
                           ${MCAST_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(mcast_torch_code PRIVATE TORCH_API_INCLUDE_EXTENSION_H USE_DISTRIBUTED
                           USE_C10D_GLOO $<$<BOOL:${MCAST_HOST_ENGINE}>:MCAST_HOST_ENGINE>)
target_link_directories(mcast_torch PRIVATE ${MCAST_TORCH_ROOT}/lib)
# Without a run path: torch is imported first, which loads these libraries.
target_link_libraries(mcast_torch PRIVATE mcast_assembly mcast_core mcast_flags c10 torch_cpu torch_python)
set_target_properties(mcast_torch PROPERTIES SKIP_BUILD_RPATH ON)
target_link_options(mcast_torch PRIVATE -Wl,--exclude-libs,ALL)

file(CONFIGURE OUTPUT ${MCAST_EXTENSION_DIR}/_build_info.py @ONLY CONTENT
"# Written by the build.\nTORCH_VERSION = \"@MCAST_TORCH_VERSION@\"\nVERSION = \"@PROJECT_VERSION@\"\n")
