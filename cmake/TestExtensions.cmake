# Programs and libraries of the Python tests (tests/python/support/built.py finds them): `make build-python-tests` makes
# the target mcast_python_tests. Nothing else does, because `make test` builds the C++ tests while Python tests load
# them. Without optimisation, since no test measures them.

set(MCAST_PYTHON_TESTS_DIR ${CMAKE_BINARY_DIR}/python_tests)

# The fake device and the backend that coalesces, as one library: most of the compile time goes into torch's
# headers, which each of them alone would need.
set(sources tests/python/support/fake_device/runtime.cpp tests/python/support/fake_device/device.cpp
            tests/python/support/batching/batching.cpp)
mcast_join(sources mcast_test_extensions 0 ${sources})
Python3_add_library(mcast_test_extensions MODULE ${sources})
# Visible, since the tests look functions up by name.
set_target_properties(mcast_test_extensions PROPERTIES OUTPUT_NAME test_extensions SKIP_BUILD_RPATH ON
                      EXCLUDE_FROM_ALL ON CXX_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${MCAST_PYTHON_TESTS_DIR})
target_compile_options(mcast_test_extensions PRIVATE -O0 -g0)
target_include_directories(mcast_test_extensions SYSTEM PRIVATE ${MCAST_TORCH_ROOT}/include
                           ${MCAST_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_directories(mcast_test_extensions PRIVATE ${MCAST_TORCH_ROOT}/lib)
target_link_libraries(mcast_test_extensions PRIVATE mcast_flags c10 torch_cpu torch torch_python)

add_custom_target(mcast_python_tests DEPENDS mcast_test_extensions)
# The planner of aggregation, for test_cost_model.py.
if(MCAST_AGGREGATION)
  add_executable(mcast_placement_rows tests/python/support/placement_rows.cpp)
  set_target_properties(mcast_placement_rows PROPERTIES OUTPUT_NAME placement_rows EXCLUDE_FROM_ALL ON
                        RUNTIME_OUTPUT_DIRECTORY ${MCAST_PYTHON_TESTS_DIR})
  target_compile_options(mcast_placement_rows PRIVATE -O0 -g0)
  target_link_libraries(mcast_placement_rows PRIVATE mcast_aggregation mcast_flags)
  add_dependencies(mcast_python_tests mcast_placement_rows)
endif()
