#include "support/mpi/agree.hpp"

#include <cstddef>
#include <vector>

#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test {
namespace {

std::string place(const char* file, int line) {
  return std::string(file) + ":" + std::to_string(line);
}

}  // namespace

testing::AssertionResult on_all_ranks(bool condition, const char* text, const char* file,
                                      int line) {
  const std::vector<int> holds = MpiRanks::instance().gather(condition ? 1 : 0, place(file, line));
  std::string where;
  for (std::size_t rank = 0; rank < holds.size(); ++rank) {
    if (holds[rank] == 0) where += (where.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (where.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "(" << text << ") does not hold on rank " << where;
}

std::string first_reason(const std::string& reason, const char* file, int line) {
  MpiRanks& ranks = MpiRanks::instance();
  const std::vector<int> lengths = ranks.gather(static_cast<int>(reason.size()), place(file, line));
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] == 0) continue;
    const int root = static_cast<int>(rank);
    return "rank " + std::to_string(root) + ": " + ranks.broadcast(reason, root, place(file, line));
  }
  return {};
}

}  // namespace kolo::test
