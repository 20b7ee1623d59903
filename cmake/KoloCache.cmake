# KOLO_CACHE_DIR: the folder that cmake/setup.sh fills, as in environment.sh.

if(NOT DEFINED KOLO_CACHE_DIR)
  if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(KOLO_CACHE_DIR "$ENV{XDG_CACHE_HOME}/kolo")
  else()
    set(KOLO_CACHE_DIR "$ENV{HOME}/.cache/kolo")
  endif()
endif()
