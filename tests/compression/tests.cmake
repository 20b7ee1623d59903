kolo_add_test(compressors_test
  SOURCES compression/codecs_test.cpp compression/compressors_test.cpp)
