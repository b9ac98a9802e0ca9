# The optional products beside the core, which does not know them. csrc/assembly is the one place that knows which of
# them are built.
#
# Sets: mcast_assembly, and if their options are on, mcast_aggregation, mcast_aggregation_server, mcast_host_client,
# mcast_host_server, mcast_sim, and the programs. MCAST_PRODUCTS lists the libraries that together link all others.
# mcast_sim_network is for tests, too.

# mcast_product(NAME FOLDERS... LINKS...): a library of the sources below these folders of csrc.
function(mcast_product name)
  cmake_parse_arguments(PARSE_ARGV 1 one "" "" "FOLDERS;LINKS")
  set(sources "")
  foreach(folder ${one_FOLDERS})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/${folder}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  list(TRANSFORM sources REPLACE "^${CMAKE_SOURCE_DIR}/" "")
  mcast_join(sources ${name} ${MCAST_JOIN} ${sources})
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/csrc)
  target_link_libraries(${name} PUBLIC ${one_LINKS} mcast_core PRIVATE mcast_flags)
endfunction()

# mcast_program(NAME SOURCES... LINKS...): csrc/programs/NAME.cpp, or SOURCES. The command line finds programs beside
# the extension.
function(mcast_program name)
  cmake_parse_arguments(PARSE_ARGV 1 one "" "" "SOURCES;LINKS")
  if(MCAST_BUILD_FUZZ)
    return()
  endif()
  add_executable(mcast_${name} ${one_SOURCES})
  set_target_properties(mcast_${name} PROPERTIES OUTPUT_NAME mcast-${name})
  target_link_libraries(mcast_${name} PRIVATE ${one_LINKS} mcast_flags)
  if(MCAST_BUILD_TORCH)
    set_target_properties(mcast_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${MCAST_EXTENSION_DIR})
  endif()
endfunction()

set(MCAST_PRODUCTS "")
if(MCAST_SIMULATOR AND NOT MCAST_AGGREGATION)
  message(FATAL_ERROR "MCAST_SIMULATOR needs MCAST_AGGREGATION, which it simulates")
endif()

add_library(mcast_assembly STATIC csrc/assembly/assembly.cpp)
target_include_directories(mcast_assembly PUBLIC ${CMAKE_SOURCE_DIR}/csrc)
target_link_libraries(mcast_assembly PUBLIC mcast_core PRIVATE mcast_flags)
if(MCAST_AGGREGATION OR MCAST_HOST_ENGINE)
  mcast_product(mcast_daemon FOLDERS daemon)
endif()
if(MCAST_AGGREGATION)
  mcast_product(mcast_aggregation FOLDERS aggregation/plan aggregation/member)
  mcast_product(mcast_aggregation_server FOLDERS aggregation/fold aggregation/server LINKS mcast_aggregation mcast_daemon)
  list(APPEND MCAST_PRODUCTS mcast_aggregation_server)
  target_compile_definitions(mcast_assembly PUBLIC MCAST_AGGREGATION)
  target_link_libraries(mcast_assembly PUBLIC mcast_aggregation)
  mcast_program(aggregator SOURCES csrc/programs/aggregator.cpp LINKS mcast_aggregation_server)
endif()
if(MCAST_HOST_ENGINE)
  mcast_product(mcast_host_client FOLDERS host_engine/ipc host_engine/client)
  mcast_product(mcast_host_server FOLDERS host_engine/server LINKS mcast_host_client mcast_daemon)
  list(APPEND MCAST_PRODUCTS mcast_host_server)
  target_compile_definitions(mcast_assembly PUBLIC MCAST_HOST_ENGINE)
  target_link_libraries(mcast_assembly PUBLIC mcast_host_client)
  mcast_program(engine SOURCES csrc/programs/engine.cpp LINKS mcast_host_server mcast_assembly)
endif()
# The core's own tests need the network.
mcast_product(mcast_sim_network FOLDERS sim/network)
if(MCAST_BUILD_FUZZ)
  target_compile_options(mcast_sim_network PRIVATE -fno-sanitize-coverage=trace-cmp)
endif()
if(MCAST_SIMULATOR)
  list(APPEND MCAST_PRODUCTS mcast_sim)
  mcast_product(mcast_sim FOLDERS sim/world sim/swarm LINKS mcast_sim_network mcast_aggregation_server)
  if(MCAST_BUILD_FUZZ)
    target_compile_options(mcast_sim PRIVATE -fno-sanitize-coverage=trace-cmp)
  endif()
  mcast_program(simulate SOURCES csrc/sim/simulate.cpp csrc/sim/simulate_swarm.cpp csrc/sim/heap_meter.cpp
                LINKS mcast_sim)
endif()
