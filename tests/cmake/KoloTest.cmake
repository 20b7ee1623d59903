# kolo_add_test, kolo_add_mpi_test, kolo_add_mpirun_test, kolo_add_variant, kolo_add_script_test.

find_package(GTest REQUIRED)

# Open MPI rejects more ranks than cores unless told that they are intended.
set(mpirun "${MPIEXEC_EXECUTABLE}")
execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE version ERROR_QUIET)
if(version MATCHES "Open MPI|OpenRTE")
  list(APPEND mpirun --oversubscribe)
endif()
set(KOLO_MPIRUN "${mpirun}" CACHE INTERNAL "How tests are launched")

# What the presets asan-torch and tsan-torch build, and the test command of the former.
add_custom_target(torch_tests)
add_custom_target(torch_short_tests)

# kolo_add_test(<name> SOURCES <file>... [LIBRARIES <target>...] [TIMEOUT <seconds>] [SHARDS <n>]
#               [ONE_THREAD] [SHORT])
# One process. SHARDS: that many tests, which run at the same time, have equally many of its cases
# each. ONE_THREAD: ThreadSanitizer has nothing to look for in it. SHORT: see kolo_label_torch.
function(kolo_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONE_THREAD;SHORT" "TIMEOUT;SHARDS" "SOURCES;LIBRARIES")
  if(arg_ONE_THREAD AND "${KOLO_SANITIZE}" STREQUAL "thread")
    return()
  endif()
  kolo_test_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} kolo_test_main)
  kolo_default(arg_TIMEOUT 300)
  kolo_default(arg_SHARDS 1)
  foreach(shard RANGE 1 ${arg_SHARDS})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      string(APPEND test ".${shard}of${arg_SHARDS}")
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test} COMMAND ${name})
    kolo_set_cost(${test} 1 ${arg_TIMEOUT})
    set_tests_properties(${test} PROPERTIES TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
    kolo_collect_cases(${test})
    kolo_label_torch(${test} ${name})
  endforeach()
endfunction()

# kolo_add_mpi_test(<name> SOURCES <file>... [RANKS <n>...] [LIBRARIES <target>...]
#                   [TIMEOUT <seconds>] [SHORT])
# One program, one test <name>.np<n> for each world size; main of tests/support/mpi. One rank waits
# for nobody; two are each other's only peer; of three, neighbours differ, shares are uneven and
# sets overlap. Four find nothing that these, or the algorithms' contracts, do not.
function(kolo_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SHORT" "TIMEOUT" "SOURCES;LIBRARIES;RANKS")
  if(KOLO_SANITIZE AND NOT TARGET kolo)
    return()  # sanitizers run the core with fake communicators only
  endif()
  kolo_test_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} kolo_test_mpi_main)
  kolo_default(arg_RANKS "1;2;3")
  kolo_default(arg_TIMEOUT 300)
  foreach(ranks IN LISTS arg_RANKS)
    kolo_add_mpirun_test(${name}.np${ranks} ${ranks} ${arg_TIMEOUT} $<TARGET_FILE:${name}>)
    kolo_collect_cases(${name}.np${ranks})
    kolo_label_torch(${name}.np${ranks} ${name})
  endforeach()
endfunction()

# kolo_add_mpirun_test(<name> <ranks> <timeout> <command>...): any program under mpirun.
function(kolo_add_mpirun_test name ranks timeout)
  add_test(NAME ${name} COMMAND ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${ARGN})
  kolo_set_mpirun_properties(${name} ${ranks} ${timeout})
endfunction()

# kolo_add_variant(<program> <variant> <ranks> <timeout> [ENVIRONMENT <name>=<value>...])
# Runs the tests again whose files name the variant (tests/support/mpi/variants.hpp), in another
# world. A comment says which defect only this run finds.
function(kolo_add_variant program variant ranks timeout)
  cmake_parse_arguments(PARSE_ARGV 4 arg "" "" "ENVIRONMENT")
  set(test ${program}.${variant}.np${ranks})
  kolo_add_mpirun_test(${test} ${ranks} ${timeout} $<TARGET_FILE:${program}>)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
    KOLO_TEST_VARIANT=${variant} ${arg_ENVIRONMENT})
  kolo_collect_cases(${test})
  kolo_label_torch(${test} ${program})
endfunction()

# kolo_add_script_test(<name> <script> <argument>...): a script whose cases tests/cases.py runs.
function(kolo_add_script_test name script)
  add_test(NAME ${name}
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${ARGN})
  kolo_collect_cases(${name})
endfunction()

# kolo_collect_cases(<test>): for a test with cases, which it writes to results/<test>.<rank> for
# tests/summary.py.
function(kolo_collect_cases test)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/results")
  set_property(TEST ${test} APPEND PROPERTY
    ENVIRONMENT "KOLO_TEST_RESULTS=${PROJECT_BINARY_DIR}/results/${test}")
endfunction()

# kolo_label_torch(<test> <program>): the label torch, if the program uses LibTorch or MPI, without
# which the presets asan and tsan are built: so it takes asan-torch or tsan-torch to run it with a
# sanitizer. The test command, for which all of these would take too long, has torch_short only: the
# tests of programs that are registered with SHORT.
function(kolo_label_torch test program)
  get_target_property(libraries ${program} LINK_LIBRARIES)
  if(NOT libraries MATCHES "(^|;)kolo(_extras|_test_mpi_main)?(;|$)")
    return()
  endif()
  set_property(TEST ${test} APPEND PROPERTY LABELS torch)
  add_dependencies(torch_tests ${program})
  get_target_property(is_short ${program} KOLO_SHORT)
  if(is_short)
    set_property(TEST ${test} APPEND PROPERTY LABELS torch_short)
    add_dependencies(torch_short_tests ${program})
  endif()
endfunction()

# kolo_set_mpirun_properties(<name> <ranks> <timeout> [SLEEPS]): for a test that calls mpirun.
# A rank has one thread for arithmetic, since OpenMP's threads spin, and yields while it waits
# inside MPI: there are more ranks than cores already. SLEEPS: the ranks hardly compute.
function(kolo_set_mpirun_properties name ranks timeout)
  if(KOLO_SANITIZE)
    math(EXPR timeout "${timeout} * 5")
  endif()
  set(processors ${ranks})
  if("${ARGV3}" STREQUAL "SLEEPS")
    set(processors 1)
  elseif(ranks GREATER 3)
    set(processors 3)  # on two cores: tests/run.sh runs other tests simultaneously
  endif()
  kolo_set_cost(${name} ${processors} ${timeout} ${ARGV3})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS RANK_${ranks})
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1 GTEST_COLOR=no KOLO_RECORD=off)
endfunction()

# kolo_set_cost(<test> <processors> <timeout> [SLEEPS]): CTest begins with the highest cost. Tests
# of several processors would otherwise wait until those of one, which always fit, have ended; and
# long ones, and those that sleep, would end after all others, with idle processors.
function(kolo_set_cost test processors timeout)
  math(EXPR cost "${processors} * 500 + ${timeout}")
  if("${ARGV3}" STREQUAL "SLEEPS")
    math(EXPR cost "${cost} + 700")
  endif()
  set_tests_properties(${test} PROPERTIES PROCESSORS ${processors} COST ${cost})
endfunction()

function(kolo_test_executable name)
  add_executable(${name} ${ARGN})
  kolo_configure_target(${name})
  kolo_internal_includes(${name})
  kolo_compile_quickly(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE kolo_test_support kolo_core GTest::gtest)
  set_target_properties(${name} PROPERTIES KOLO_SHORT "${arg_SHORT}")
  if(kolo IN_LIST arg_LIBRARIES OR kolo_extras IN_LIST arg_LIBRARIES)
    kolo_precompile_torch(${name})
  endif()
endfunction()

# kolo_compile_quickly(<target>): code that is compiled more often than it runs. With
# AddressSanitizer, -O1 takes two to three times as long, and looking for undefined behaviour a
# third longer. With ThreadSanitizer, -O1 saves more time in the tests than it takes to compile.
function(kolo_compile_quickly target)
  set(level -O0)
  if(KOLO_SANITIZE MATCHES "thread")
    set(level -O1)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
  if(KOLO_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=undefined>)
  endif()
endfunction()

# kolo_precompile_torch(<executable>): for tests that include LibTorch's headers, which take longer
# to compile than the tests do.
function(kolo_precompile_torch name)
  if(NOT TARGET kolo_torch_precompiled)
    set(source "${PROJECT_BINARY_DIR}/generated/kolo_torch_precompiled.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "int main() {}\n" @ONLY)
    add_executable(kolo_torch_precompiled EXCLUDE_FROM_ALL "${source}")
    kolo_configure_target(kolo_torch_precompiled)
    kolo_compile_quickly(kolo_torch_precompiled)
    target_link_libraries(kolo_torch_precompiled PRIVATE kolo GTest::gtest)
    kolo_precompile_headers(kolo_torch_precompiled <torch/torch.h> <gtest/gtest.h>)
  endif()
  target_link_libraries(${name} PRIVATE GTest::gtest)  # whose definitions are the headers', too
  kolo_reuse_precompiled(${name} kolo_torch_precompiled)
endfunction()

macro(kolo_default variable value)
  if(NOT ${variable})
    set(${variable} "${value}")
  endif()
endmacro()
