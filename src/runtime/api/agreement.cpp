#include "kolo/agreement.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "runtime/api/collectives.hpp"

namespace kolo {
namespace {

// The encoding of a rank's part: its problem, then pairs of name and value, all zero-terminated.
std::string encode(const std::vector<NamedValue>& values, const std::string& problem) {
  std::string bytes = problem + '\0';
  for (const NamedValue& value : values) bytes += value.name + '\0' + value.value + '\0';
  return bytes;
}

std::string take_text(std::string_view& bytes) {
  const std::size_t end = std::min(bytes.find('\0'), bytes.size());
  std::string text(bytes.substr(0, end));
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  return text;
}

struct Part {
  int rank;  // of the world
  std::string problem;
  std::vector<NamedValue> values;
};

std::vector<Part> gather(const std::string& own, OperationOptions options) {
  ProcessSet& set = runtime::set_or_world(options.process_set);
  if (options.name.empty()) options.name = set.next_name("check_agreement");
  const std::vector<std::string> all = allgather_object(own, options);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string_view bytes = all[i];
    if (bytes.empty()) continue;  // this rank has joined
    Part& part = parts.emplace_back(Part{set.ranks()[i], take_text(bytes), {}});
    while (!bytes.empty()) {
      std::string name = take_text(bytes);
      part.values.push_back({std::move(name), take_text(bytes)});
    }
  }
  return parts;
}

void compare(const std::string& what, const Part& first, const Part& other,
             const std::string& advice) {
  const std::size_t count = std::min(first.values.size(), other.values.size());
  for (std::size_t i = 0; i < count; ++i) {
    const NamedValue& a = first.values[i];
    const NamedValue& b = other.values[i];
    if (a.name == b.name && a.value == b.value) continue;
    throw MismatchError(what + ": ranks disagree: " + a.name + " is " + a.value + " on rank " +
                        std::to_string(first.rank) + ", and " + b.name + " is " + b.value +
                        " on rank " + std::to_string(other.rank) + ". " + advice);
  }
}

}  // namespace

void check_agreement(const std::string& what, const std::vector<NamedValue>& values,
                     const std::string& problem, const OperationOptions& options,
                     const std::string& advice) {
  std::vector<Part> parts = gather(encode(values, problem), options);
  for (const Part& part : parts) {
    if (part.problem.empty()) continue;
    throw InvalidArgument(what + ": on rank " + std::to_string(part.rank) + ": " + part.problem);
  }
  std::erase_if(parts, [](const Part& part) { return part.values.empty(); });
  for (const Part& part : parts) compare(what, parts.front(), part, advice);
}

}  // namespace kolo
