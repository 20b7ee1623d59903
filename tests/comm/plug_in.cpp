// A plug-in with a copy of Kolo of its own, see two_copies.cpp.
#include <cstdio>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"

extern "C" [[gnu::visibility("default")]] void use_kolo() {
  try {
    std::printf("rank %d\n", kolo::rank());
  } catch (const kolo::InvalidArgument& error) {
    std::printf("%s\n", error.what());
  }
}
