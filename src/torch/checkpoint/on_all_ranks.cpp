#include "torch/checkpoint/on_all_ranks.hpp"

#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "runtime/api/submit.hpp"
#include "torch/checkpoint/printable.hpp"

namespace kolo::tensors {
namespace {

constexpr char kDone = 'd';
constexpr char kInvalid = 'i';
constexpr char kFailed = 'f';

/// A rank's outcome: how it ended, then the result or the error's text.
std::string outcome_of(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const InvalidArgument& error) {
    return std::string(1, kInvalid) + error.what();
  } catch (const std::exception& error) {
    return std::string(1, kFailed) + error.what();
  }
}

}  // namespace

std::vector<std::string> on_all_ranks(const OperationOptions& options, const std::string& what,
                                      const std::function<std::string()>& work) {
  const std::vector<int>& ranks = runtime::chosen(options.process_set).ranks();
  std::vector<std::string> outcomes = allgather_object(outcome_of(work), options);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    std::string& outcome = outcomes[i];
    const std::string rank = "rank " + std::to_string(ranks[i]);
    if (outcome.empty()) throw InvalidArgument(what + ": " + rank + " has joined");
    const char ending = outcome.front();
    outcome.erase(0, 1);
    const std::string text = printable(what + ": on " + rank + ": " + outcome);
    if (ending == kInvalid) throw InvalidArgument(text);
    if (ending == kFailed) throw BackendError(text);
  }
  return outcomes;
}

}  // namespace kolo::tensors
