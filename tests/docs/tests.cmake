# Runs the code in the documents: mistakes with their error texts, and the tutorial.
kolo_test_executable(mistakes docs/mistakes.cpp)
target_link_libraries(mistakes PRIVATE MPI::MPI_C)
kolo_add_script_test(docs.troubleshooting docs/troubleshooting_test.py
  $<TARGET_FILE:mistakes> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2)
kolo_set_mpirun_properties(docs.troubleshooting 2 300 SLEEPS)
kolo_add_script_test(docs.links docs/links_test.py)
kolo_add_script_test(docs.options docs/options_test.py)
if(KOLO_BUILD_EXAMPLES)
  kolo_add_script_test(docs.commands docs/commands_test.py $<TARGET_FILE:kolo-bench>)
endif()
if(TARGET kolo)
  # kolo_add_page_program(<name>): a program made of the C++ blocks in docs/<name>.md.
  function(kolo_add_page_program name)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
    add_custom_command(
      OUTPUT "${source}"
      COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/docs/tutorial.py"
        "${source}" ${name}.md
      DEPENDS docs/tutorial.py "${PROJECT_SOURCE_DIR}/docs/${name}.md"
      VERBATIM)
    add_executable(${name} "${source}")
    kolo_use_ccache(${name})
    kolo_compile_quickly(${name})
    target_link_libraries(${name} PRIVATE kolo_extras)
  endfunction()
  kolo_add_page_program(tutorial)
  kolo_add_script_test(docs.tutorial docs/tutorial_test.py
    $<TARGET_FILE:tutorial> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
  kolo_set_mpirun_properties(docs.tutorial 2 120)
  kolo_add_page_program(accelerator)
  kolo_add_script_test(docs.accelerator docs/accelerator_test.py
    $<TARGET_FILE:accelerator> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG})
  kolo_set_mpirun_properties(docs.accelerator 2 120)
  kolo_test_executable(training_mistakes docs/training_mistakes.cpp)
  target_link_libraries(training_mistakes PRIVATE kolo_extras)
  kolo_precompile_torch(training_mistakes)
  kolo_add_script_test(docs.troubleshooting_training docs/troubleshooting_test.py
    $<TARGET_FILE:training_mistakes> ${KOLO_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2)
  kolo_set_mpirun_properties(docs.troubleshooting_training 2 300 SLEEPS)
endif()
