# The libraries that programs link.

# kolo_publish(<target> <name>): kolo::<name> is the static library <target>, or with
# BUILD_SHARED_LIBS a shared one of its objects, <target>_shared. Tests and Kolo's own programs use
# internals, which are hidden there: they link <target>.
function(kolo_publish target name)
  set(published ${target})
  if(BUILD_SHARED_LIBS)
    set(published ${target}_shared)
    get_target_property(others ${target} SOURCES)
    list(FILTER others INCLUDE REGEX "TARGET_OBJECTS")
    add_library(${published} SHARED $<TARGET_OBJECTS:${target}> ${others})
    get_target_property(libraries ${target} LINK_LIBRARIES)
    list(TRANSFORM libraries REPLACE "^(kolo|kolo_core)$" "\\1_shared")
    get_target_property(interface ${target} INTERFACE_LINK_LIBRARIES)
    list(TRANSFORM interface REPLACE "^(kolo|kolo_core)$" "\\1_shared")
    list(FILTER interface EXCLUDE REGEX "LINK_ONLY")
    get_target_property(includes ${target} INTERFACE_INCLUDE_DIRECTORIES)
    target_link_libraries(${published} PRIVATE ${libraries} INTERFACE ${interface})
    target_link_options(${published} PRIVATE -Wl,--no-undefined)
    target_compile_features(${published} INTERFACE cxx_std_20)
    set_target_properties(${published} PROPERTIES
      LINKER_LANGUAGE CXX
      OUTPUT_NAME ${target}
      INSTALL_RPATH "$ORIGIN"
      INSTALL_RPATH_USE_LINK_PATH ON  # CUDA may be outside the system's folders
      VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    if(includes)
      target_include_directories(${published} INTERFACE ${includes})
    endif()
  endif()
  set_target_properties(${published} PROPERTIES EXPORT_NAME ${name})
  add_library(kolo::${name} ALIAS ${published})
endfunction()
