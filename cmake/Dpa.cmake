# The kernel of csrc/dpa: freestanding C, compiled for this machine's tests only. tools/dpa_count.py
# builds it for RISC-V.

enable_language(C)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
if(CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${MCAST_CORE_LAUNCHER})
endif()

set(MCAST_DPA_SOURCES csrc/dpa/receive.c csrc/dpa/send.c)
# Built as in the product: without sanitizers, which need a library. The stack limit is for RV64; x86-64
# keeps it, too.
add_library(mcast_dpa OBJECT ${MCAST_DPA_SOURCES})
target_compile_options(mcast_dpa PRIVATE -Wall -Wextra -Wshadow -Wconversion -O2 -ffreestanding
  -fno-stack-protector -fomit-frame-pointer
  $<$<C_COMPILER_ID:GNU>:-fno-tree-loop-distribute-patterns>
  $<$<AND:$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>,$<C_COMPILER_ID:GNU>>:-Wstack-usage=128>
  $<$<BOOL:${MCAST_WERROR}>:-Werror>)
# The same under other names, and sanitized: the model of the NIC checks each announcement.
add_library(mcast_dpa_observed OBJECT ${MCAST_DPA_SOURCES})
target_compile_definitions(mcast_dpa_observed PRIVATE DPA_OBSERVED)
foreach(kernel receive_header receive_for_engine receive_immediate receive_placed send_header send_immediate)
  target_compile_definitions(mcast_dpa_observed PRIVATE dpa_${kernel}=dpa_observed_${kernel})
endforeach()
target_link_libraries(mcast_dpa_observed PRIVATE mcast_flags)
foreach(target mcast_dpa mcast_dpa_observed)
  target_include_directories(${target} PRIVATE csrc/dpa)
endforeach()

# Sources of the program of tests/cpp/offload outside its folder: a model of a NIC, and the tests of groups
# that it runs with the kernel as receiver.
set(MCAST_OFFLOAD_SOURCES tests/cpp/dpa/nic_model.c tests/cpp/dpa/observed.cpp tests/cpp/dpa/public_faults.c)
foreach(tests schedule schedule_run schedules_test paper_cases_test late_test sleepy_test failure_test)
  list(APPEND MCAST_OFFLOAD_SOURCES tests/cpp/collective/${tests}.cpp)
endforeach()

# Adds the additional requirements of the programs of tests/cpp/dpa and tests/cpp/offload.
function(mcast_dpa_tests)
  foreach(program dpa offload)
    target_include_directories(mcast_test_${program} PRIVATE csrc/dpa)
    target_link_libraries(mcast_test_${program} PRIVATE mcast_dpa_observed)
  endforeach()
  target_link_libraries(mcast_test_dpa PRIVATE mcast_dpa)
  if(MCAST_HAVE_VERBS)
    # infiniband/mlx5dv.h, with which a test compares the formats.
    target_compile_definitions(mcast_test_dpa PRIVATE MCAST_HAVE_VERBS)
    target_include_directories(mcast_test_dpa SYSTEM PRIVATE ${IBVERBS_INCLUDE})
  endif()
  # The C code of this folder is freestanding, too.
  file(GLOB sources ${CMAKE_SOURCE_DIR}/tests/cpp/dpa/*.c)
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -ffreestanding)
  # The kernel calls no function outside itself.
  add_test(NAME dpa_calls_nothing COMMAND sh -c "! ${CMAKE_NM} -u \"$@\" | grep -w U" sh $<TARGET_OBJECTS:mcast_dpa>
           COMMAND_EXPAND_LISTS)
endfunction()
