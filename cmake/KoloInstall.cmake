# find_package(kolo) from the build tree and from the install tree, pkg-config, and packages.
#
# Its components are core, which is kolo::core, and torch, which is kolo::kolo and kolo::extras and
# needs LibTorch.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_install_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kolo")
set(pkg_config_install_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pkg_config_prefix "/${pkg_config_install_dir}" "/")  # wherever it is installed

# kolo_install(<component> <target>...): what kolo_publish() has made of the targets, each with a
# pkg-config file of its name.
function(kolo_install component)
  foreach(target IN LISTS ARGN)
    string(REPLACE "_" "-" name ${target})
    set(published ${target})
    if(BUILD_SHARED_LIBS)
      set(published ${target}_shared)
    endif()
    install(TARGETS ${published} EXPORT kolo_${component} COMPONENT ${component}
      ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${pkg_config_install_dir}"
      COMPONENT ${component})
  endforeach()
  install(EXPORT kolo_${component} NAMESPACE kolo:: DESTINATION "${package_install_dir}"
    COMPONENT ${component})
  export(EXPORT kolo_${component} NAMESPACE kolo::
    FILE "${PROJECT_BINARY_DIR}/kolo_${component}.cmake")
  install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/kolo-${component}"
    COMPONENT ${component} RENAME copyright)
endfunction()

# What programs must link in addition, unless Kolo is a shared library, which has it already.
set(pkg_config_core_libs "")
set(pkg_config_core_requires "")
if(NOT BUILD_SHARED_LIBS)
  set(pkg_config_core_requires libhwy)
  set(pkg_config_core_libs " -pthread -ldl")
  if(KOLO_CUDA)
    string(APPEND pkg_config_core_libs " ${CUDA_cudart_LIBRARY} ${NCCL_LIBRARY}")
  endif()
endif()
kolo_install(core kolo_core)
if(TARGET kolo::kolo)
  set(pkg_config_torch_libs "-ltorch_cpu -lc10")
  get_target_property(libtorch_links LibTorch::LibTorch INTERFACE_LINK_LIBRARIES)
  if("${libtorch_links}" MATCHES "torch_cuda")  # see FindLibTorch.cmake
    string(APPEND pkg_config_torch_libs
      " -Wl,--push-state,--no-as-needed,-ltorch_cuda,-lc10_cuda,--pop-state")
  endif()
  kolo_install(torch kolo kolo_extras)
endif()

# Beside the other programs, but of the core: whoever has traces needs it.
configure_file(examples/kolo_trace.py examples/kolo-trace COPYONLY)
install(PROGRAMS examples/kolo_trace.py COMPONENT core
  DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME kolo-trace)

configure_package_config_file(cmake/koloConfig.cmake.in koloConfig.cmake
  INSTALL_DESTINATION "${package_install_dir}")
write_basic_package_version_file(koloConfigVersion.cmake COMPATIBILITY SameMinorVersion)
set(find_modules cmake/FindLibTorch.cmake cmake/FindNCCL.cmake cmake/KoloCache.cmake)
file(COPY ${find_modules} DESTINATION "${PROJECT_BINARY_DIR}")
install(FILES "${PROJECT_BINARY_DIR}/koloConfig.cmake"
              "${PROJECT_BINARY_DIR}/koloConfigVersion.cmake" ${find_modules}
        DESTINATION "${package_install_dir}" COMPONENT core)
install(DIRECTORY include/kolo DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT core
        PATTERN include/kolo/torch EXCLUDE
        PATTERN include/kolo/extras EXCLUDE
        PATTERN include/kolo/kolo.hpp EXCLUDE)
if(TARGET kolo::kolo)
  install(DIRECTORY include/kolo/torch include/kolo/extras
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kolo" COMPONENT torch)
  if(NOT EXISTS "${LibTorch_ROOT}/share/cmake/Torch/TorchConfig.cmake")
    # Programs that link LibTorch themselves find the same.
    set(torch_dir "${PROJECT_BINARY_DIR}/Torch")
    configure_file(cmake/TorchConfig.cmake.in "${torch_dir}/TorchConfig.cmake" @ONLY)
    write_basic_package_version_file("${torch_dir}/TorchConfigVersion.cmake"
      VERSION ${LibTorch_VERSION} COMPATIBILITY AnyNewerVersion)
    install(DIRECTORY "${torch_dir}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake" COMPONENT torch)
    if(NOT PROJECT_IS_TOP_LEVEL)
      set(Torch_DIR "${torch_dir}" PARENT_SCOPE)
    endif()
  endif()
  install(FILES include/kolo/kolo.hpp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kolo"
          COMPONENT torch)
endif()
