// Loads a plug-in that is linked with the static library, as this program is: two_copies <plug-in>.
#include <cstdio>
#include <dlfcn.h>

#include "kolo/runtime.hpp"

int main(int, char** argv) {
  const kolo::Runtime runtime;  // one process
  void* const plug_in = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* const use_kolo = plug_in != nullptr ? ::dlsym(plug_in, "use_kolo") : nullptr;
  if (use_kolo == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return 1;
  }
  reinterpret_cast<void (*)()>(use_kolo)();
}
