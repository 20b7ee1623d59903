# cpack: a Debian package and an archive of each installed component. The preset "package" builds
# shared libraries without CUDA; another preset packages what it builds.

set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_VENDOR "Kolo")
set(CPACK_PACKAGE_CONTACT "Kolo's developers <kolo@localhost>")
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)

set(CPACK_COMPONENTS_ALL core)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_PROJECT_CONFIG_FILE "${CMAKE_CURRENT_LIST_DIR}/KoloArchives.cmake")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_CORE_PACKAGE_NAME kolo-core)
set(CPACK_COMPONENT_CORE_DESCRIPTION
  "Collective communication over MPI: libraries and headers; kolo-trace: what the ranks did")
set(CPACK_DEBIAN_CORE_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CORE_PACKAGE_RECOMMENDS "openmpi-bin | mpich, python3")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
if(TARGET kolo::kolo)
  list(APPEND CPACK_COMPONENTS_ALL torch)
  set(CPACK_DEBIAN_TORCH_PACKAGE_NAME kolo-torch)
  set(CPACK_COMPONENT_TORCH_DESCRIPTION
    "Distributed training with LibTorch ${LibTorch_VERSION}, which is not in this package")
  set(CPACK_COMPONENT_TORCH_DEPENDS core)
endif()
if(KOLO_BUILD_EXAMPLES)
  list(APPEND CPACK_COMPONENTS_ALL bench)
  set(CPACK_DEBIAN_BENCH_PACKAGE_NAME kolo-bench)
  set(CPACK_COMPONENT_BENCH_DESCRIPTION 
    "kolo-bench: bandwidth and latency of collectives; kolo-restart: restarts of failed jobs")
  set(CPACK_DEBIAN_BENCH_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_BENCH_PACKAGE_RECOMMENDS "openmpi-bin | mpich, python3")  # they call mpirun
endif()
include(CPack)
