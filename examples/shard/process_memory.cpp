#include "shard/process_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>  // defines __GLIBC__
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

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

using Segment = std::pair<const std::byte*, std::size_t>;

/// Parses a line that begins a mapping of shared memory without a name, which is what Kolo makes.
std::optional<Segment> shared_segment(const std::string& line) {
  if (line.find(" /dev/shm/#") == std::string::npos) return std::nullopt;
  std::istringstream range(line);
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  char dash = 0;
  range >> std::hex >> begin >> dash >> end;
  return Segment(reinterpret_cast<const std::byte*>(begin), end - begin);
}

/// A line of /proc/self/status, such as "VmHWM:    123 kB", in bytes.
std::size_t status_bytes(const std::string& field) {
  std::ifstream status = open_own("status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoul(line.substr(field.size() + 1)) * 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + field);
}

}  // namespace

std::size_t growth_during(const std::function<void()>& work) {
  std::ofstream clear_refs("/proc/self/clear_refs");
  clear_refs << "5" << std::flush;
  if (!clear_refs) throw std::runtime_error("cannot write /proc/self/clear_refs");
  const std::size_t before = status_bytes("VmRSS");
  work();
  return std::max(status_bytes("VmHWM"), before) - before;
}

std::size_t shared_segment_bytes() {
  std::size_t sum = 0;
  std::ifstream maps = open_own("maps");
  for (std::string line; std::getline(maps, line);) {
    if (const auto segment = shared_segment(line)) sum += segment->second;
  }
  return sum;
}

std::map<const std::byte*, std::size_t> own_segments() {
  // Segments of other ranks are excluded from core dumps, which the flag dd shows.
  std::map<const std::byte*, std::size_t> segments;
  std::ifstream maps = open_own("smaps");
  std::optional<Segment> segment;
  for (std::string line; std::getline(maps, line);) {
    if (const auto found = shared_segment(line)) segment = found;
    if (!line.starts_with("VmFlags:")) continue;
    if (segment && line.find(" dd") == std::string::npos) segments.insert(*segment);
    segment.reset();
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
