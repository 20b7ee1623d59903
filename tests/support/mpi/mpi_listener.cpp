#include "support/mpi/mpi_listener.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace kolo::test {
namespace {

// Separators of a failure's fields, and of failures, in messages to rank 0.
constexpr char kFieldEnd = '\x1f';
constexpr char kFailureEnd = '\x1e';

std::string file_of(const testing::TestPartResult& result) {
  return result.file_name() == nullptr ? "unknown file" : result.file_name();
}

}  // namespace

void MpiListener::OnTestStart(const testing::TestInfo& test) {
  failures_.clear();
  has_skipped_ = false;
  ranks_.watchdog().begin(std::string(test.test_suite_name()) + "." + test.name());
}

void MpiListener::OnTestPartResult(const testing::TestPartResult& result) {
  if (is_reporting_ || result.passed()) return;
  has_skipped_ |= result.skipped();
  if (result.failed())
    failures_.push_back({file_of(result), result.line_number(), result.message()});
  const std::string text = ranks_.prefix() + file_of(result) + ":" +
                           std::to_string(result.line_number()) +
                           (result.skipped() ? ": skipped: " : ": ") + result.message() + "\n";
  std::fputs(text.c_str(), stderr);
}

void MpiListener::OnTestEnd(const testing::TestInfo& test) {
  const std::string place = std::string("end of ") + test.test_suite_name() + "." + test.name();
  const std::vector<std::string> reports = ranks_.gather_on_first(encode_failures(), place);
  const std::vector<int> failed = ranks_.gather(failures_.empty() ? 0 : 1, place);
  const std::vector<int> skipped = ranks_.gather(has_skipped_ ? 1 : 0, place);
  ranks_.watchdog().end();

  is_reporting_ = true;
  for (std::size_t rank = 1; rank < reports.size(); ++rank) {
    replay_failures(static_cast<int>(rank), reports[rank]);
  }
  const auto first_failed = std::find(failed.begin(), failed.end(), 1);
  if (ranks_.rank() != 0 && failures_.empty() && first_failed != failed.end()) {
    ADD_FAILURE() << "failed on rank " << (first_failed - failed.begin());
  }
  if (std::adjacent_find(skipped.begin(), skipped.end(), std::not_equal_to<>()) != skipped.end()) {
    ADD_FAILURE() << "skipped on some ranks only: use SKIP_IF_ANY_RANK";
  }
  is_reporting_ = false;
}

std::string MpiListener::encode_failures() const {
  std::string encoded;
  for (const Failure& failure : failures_) {
    encoded += failure.file + kFieldEnd + std::to_string(failure.line) + kFieldEnd + failure.text +
               kFailureEnd;
  }
  return encoded;
}

void MpiListener::replay_failures(int rank, const std::string& encoded) {
  std::istringstream failures(encoded);
  for (std::string one; std::getline(failures, one, kFailureEnd);) {
    std::istringstream fields(one);
    std::string file;
    std::string line;
    std::string text;
    std::getline(fields, file, kFieldEnd);
    std::getline(fields, line, kFieldEnd);
    std::getline(fields, text, '\0');
    ADD_FAILURE_AT(file.c_str(), std::stoi(line)) << "[rank " << rank << "] " << text;
  }
}

}  // namespace kolo::test
