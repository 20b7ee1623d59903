#include "train/tensors/agreement.hpp"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "base/text.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"

namespace kolo::train {
namespace {

// The encoding of a rank's part: its problem, then pairs of name and value, all zero-terminated.
std::string encode(const std::vector<Fact>& facts, const std::string& problem) {
  std::string bytes = problem + '\0';
  for (const Fact& fact : facts) bytes += fact.name + '\0' + fact.value + '\0';
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
  std::vector<Fact> facts;
};

std::vector<Part> gather(ProcessSet& set, const std::string& name, const std::string& own) {
  const std::vector<std::string> all = allgather_object(own, {.name = name, .process_set = &set});
  std::vector<Part> parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string_view bytes = all[i];
    if (bytes.empty()) continue;  // this rank has joined
    Part& part = parts.emplace_back(Part{set.ranks()[i], take_text(bytes), {}});
    while (!bytes.empty()) {
      std::string fact = take_text(bytes);
      part.facts.push_back({std::move(fact), take_text(bytes)});
    }
  }
  return parts;
}

void compare(const std::string& what, const Part& first, const Part& other,
             const std::string& advice) {
  const std::size_t count = std::min(first.facts.size(), other.facts.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Fact& a = first.facts[i];
    const Fact& b = other.facts[i];
    if (a.name == b.name && a.value == b.value) continue;
    throw MismatchError(what + ": ranks disagree: " + a.name + " is " + a.value + " on rank " +
                        std::to_string(first.rank) + ", and " + b.name + " is " + b.value +
                        " on rank " + std::to_string(other.rank) + ". " + advice);
  }
}

}  // namespace

void agree(ProcessSet& set, const std::string& name, const std::string& what,
           const std::vector<Fact>& facts, const std::string& problem, const std::string& advice) {
  std::vector<Part> parts = gather(set, name, encode(facts, problem));
  for (const Part& part : parts) {
    if (part.problem.empty()) continue;
    throw InvalidArgument(what + ": on rank " + std::to_string(part.rank) + ": " + part.problem);
  }
  std::erase_if(parts, [](const Part& part) { return part.facts.empty(); });
  for (const Part& part : parts) compare(what, parts.front(), part, advice);
}

std::string text_of_current_error() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (...) {
    return text_of_current_exception();
  }
}

void run_on_all(ProcessSet& set, const std::string& name, const std::string& what,
                const std::string& actor, const std::function<void()>& work) {
  std::exception_ptr error;
  std::string problem;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
    problem = actor + " threw: " + text_of_current_error();
  }
  try {
    agree(set, name, what, {}, problem);
  } catch (const InvalidArgument&) {
    if (error) std::rethrow_exception(error);
    throw;
  }
}

}  // namespace kolo::train
