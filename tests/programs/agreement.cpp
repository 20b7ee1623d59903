#include "programs/agreement.hpp"

#include <cstddef>

namespace kolo::programs {
namespace {

/// The first two ranks whose values differ; `none` means that a rank has no value.
template <class Values, class Value>
std::string first_two(const std::vector<Outcome>& outcomes, Values values, std::size_t place,
                      Value none) {
  std::size_t first = outcomes.size();
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Value value = (outcomes[rank].*values)[place];
    if (value == none) continue;
    if (first == outcomes.size()) {
      first = rank;
    } else if (value != (outcomes[first].*values)[place]) {
      return "ranks " + std::to_string(first) + " and " + std::to_string(rank);
    }
  }
  return {};
}

}  // namespace

std::string disagreement(const Program& program, const std::vector<Outcome>& outcomes) {
  std::string text;
  for (const Operation& operation : program.operations) {
    const auto place = static_cast<std::size_t>(operation.id);
    const std::string ranks = first_two(outcomes, &Outcome::digests, place, std::uint64_t{0});
    if (ranks.empty()) continue;
    text += "  " + ranks + " have results with different bits of " + describe(program, operation) +
            "\n";
  }
  for (int joining = 0; joining < program.joinings; ++joining) {
    const auto place = static_cast<std::size_t>(joining);
    const std::string ranks = first_two(outcomes, &Outcome::last_joined, place, -1);
    if (ranks.empty()) continue;
    text += "  " + ranks + " were told different ranks that joined last in joining " +
            std::to_string(joining) + "\n";
  }
  return text;
}

}  // namespace kolo::programs
