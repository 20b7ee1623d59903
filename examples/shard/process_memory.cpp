#include "shard/process_memory.hpp"

#include <cstdint>
#include <cstdlib>  // defines __GLIBC__
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace shard {
namespace {

std::ifstream open_own(const std::string& name) {
  std::ifstream file("/proc/self/" + name);
  if (!file) throw std::runtime_error("cannot read /proc/self/" + name);
  return file;
}

}  // namespace

std::map<const std::byte*, std::size_t> own_segments() {
  const std::string own_name = "/kolo-" + std::to_string(::getpid()) + "-";
  std::map<const std::byte*, std::size_t> segments;
  std::ifstream maps = open_own("maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(own_name) == std::string::npos) continue;
    std::istringstream range(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    range >> std::hex >> begin >> dash >> end;
    segments.emplace(reinterpret_cast<const std::byte*>(begin), end - begin);
  }
  return segments;
}

Pss trimmed_pss() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
  Pss pss;
  std::ifstream rollup = open_own("smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    std::istringstream fields(line);
    std::string key;
    std::size_t kilobytes = 0;
    fields >> key >> kilobytes;
    if (key == "Pss:") pss.total = kilobytes << 10;
    if (key == "Pss_File:") pss.of_files = kilobytes << 10;
  }
  return pss;
}

}  // namespace shard
