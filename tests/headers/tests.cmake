# Every public header must compile alone: building is the test. Unity builds compile sixteen of them
# together, so only the preset clang tests each one.

# Adds an object library of one source for each header; names are relative to include/.
function(kolo_add_header_test name)
  set(units "")
  foreach(header IN LISTS ARGN)
    set(unit "${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp")
    file(CONFIGURE OUTPUT "${unit}" CONTENT "#include <${header}>\n")
    list(APPEND units "${unit}")
  endforeach()
  add_library(${name} OBJECT ${units})
  kolo_configure_target(${name})
endfunction()

set(include "${PROJECT_SOURCE_DIR}/include")
file(GLOB core_headers CONFIGURE_DEPENDS RELATIVE "${include}" "${include}/kolo/*.hpp")
list(REMOVE_ITEM core_headers kolo/kolo.hpp)
kolo_add_header_test(kolo_core_headers ${core_headers})
# json_objects.hpp is for programs that have nlohmann_json, mpi.hpp for those that use MPI.
target_link_libraries(kolo_core_headers PRIVATE
  kolo::core nlohmann_json::nlohmann_json MPI::MPI_C)
# Macros of X11 either do no harm or are named. First those that do none.
set(x11 Above Always Below Complex Convex Expose False GrayScale InputFocus KeyPress NoValue
  Opposite Status Success True Unsorted)
list(TRANSFORM x11 PREPEND -D)
set(all_core_headers "${core_headers}")
list(REMOVE_ITEM all_core_headers kolo/json_objects.hpp kolo/mpi.hpp)
list(TRANSFORM all_core_headers REPLACE "(.+)" "#include <\\1>")
list(JOIN all_core_headers "\n" all_core_headers)
set(unit "${CMAKE_CURRENT_BINARY_DIR}/headers/all_core_headers.cpp")
file(CONFIGURE OUTPUT "${unit}" CONTENT "${all_core_headers}\n")
set(check "${CMAKE_CXX_COMPILER}" -std=c++20 -fsyntax-only "-I${include}" "${unit}")
add_test(NAME headers.x11 COMMAND ${check} ${x11})
foreach(macro IN ITEMS Bool=int InputOutput=1 None=0L)
  string(REGEX REPLACE "=.*" "" name "${macro}")
  add_test(NAME headers.x11.${name}
    COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/expect_output.py" fails
      "error: .*X11 defines [A-Za-z, ]*${name}" ${check} -D${macro})
endforeach()
add_test(NAME headers.other_abi
  COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/expect_output.py" fails
    "Kolo was built with another _GLIBCXX_USE_CXX11_ABI" ${check}
    -DKOLO_CXX11_ABI=1 -D_GLIBCXX_USE_CXX11_ABI=0)
if(TARGET kolo::kolo)
  file(GLOB torch_headers CONFIGURE_DEPENDS RELATIVE "${include}" "${include}/kolo/torch/*.hpp")
  kolo_add_header_test(kolo_torch_headers ${torch_headers} kolo/kolo.hpp)
  target_link_libraries(kolo_torch_headers PRIVATE kolo::kolo)
  file(GLOB extras_headers CONFIGURE_DEPENDS RELATIVE "${include}" "${include}/kolo/extras/*.hpp")
  kolo_add_header_test(kolo_extras_headers ${extras_headers})
  target_link_libraries(kolo_extras_headers PRIVATE kolo::extras)
endif()
