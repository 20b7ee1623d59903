# find_package(kolo) from the build tree and from the install tree.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_install_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kolo")
set(targets kolo_core)
if(TARGET kolo)
  list(APPEND targets kolo)
endif()

install(TARGETS ${targets} EXPORT koloTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY include/kolo DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT koloTargets NAMESPACE kolo:: DESTINATION "${package_install_dir}")
export(EXPORT koloTargets NAMESPACE kolo:: FILE "${PROJECT_BINARY_DIR}/koloTargets.cmake")

configure_package_config_file(cmake/koloConfig.cmake.in koloConfig.cmake
  INSTALL_DESTINATION "${package_install_dir}")
write_basic_package_version_file(koloConfigVersion.cmake COMPATIBILITY SameMinorVersion)
set(find_modules cmake/FindLibTorch.cmake cmake/FindNCCL.cmake)
file(COPY ${find_modules} DESTINATION "${PROJECT_BINARY_DIR}")
install(FILES "${PROJECT_BINARY_DIR}/koloConfig.cmake"
              "${PROJECT_BINARY_DIR}/koloConfigVersion.cmake" ${find_modules}
        DESTINATION "${package_install_dir}")
