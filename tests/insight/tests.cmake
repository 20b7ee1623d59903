kolo_test_executable(trouble insight/trouble.cpp)
foreach(kind IN ITEMS mismatch deadline killed stopped hangs throws terminated healthy skips
    crosswise)
  add_test(NAME insight.why.${kind}
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/insight/why_test.py"
      ${kind} $<TARGET_FILE:trouble> "${PROJECT_SOURCE_DIR}/examples/kolo_trace.py" ${KOLO_MPIRUN})
  kolo_set_mpirun_properties(insight.why.${kind} 3 120 SLEEPS)
endforeach()
if(TARGET kolo)
  kolo_test_executable(slow_ranks insight/slow_ranks.cpp)
  target_link_libraries(slow_ranks PRIVATE kolo)
  kolo_precompile_torch(slow_ranks)
  add_test(NAME insight.stragglers
    COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/insight/stragglers_test.py"
      $<TARGET_FILE:slow_ranks> "${PROJECT_SOURCE_DIR}/examples/kolo_trace.py" ${KOLO_MPIRUN})
  kolo_set_mpirun_properties(insight.stragglers 4 180 SLEEPS)
endif()
kolo_add_test(insight_test SOURCES insight/metrics_test.cpp insight/recorder_test.cpp
  LIBRARIES nlohmann_json::nlohmann_json)
