set(signals base/signals_test.cpp)
if("${KOLO_SANITIZE}" STREQUAL "thread")
  set(signals "")  # it delivers signals late, and none in forked children
endif()
kolo_add_test(base_test SOURCES base/base_test.cpp base/config_test.cpp
  base/creator_process_test.cpp ${signals} base/task_test.cpp)
kolo_add_test(convert_test SOURCES base/convert_test.cpp LIBRARIES hwy::hwy ONE_THREAD)
