#include "torch/checkpoint/on_all_ranks.hpp"

#include "kolo/config.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/collectives.hpp"
#include "torch/checkpoint/printable.hpp"

namespace kolo::train {
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

/// Throws its error, which `what` begins; otherwise leaves its result.
void require_done(std::string& outcome, const std::string& what) {
  const char ending = outcome.front();
  outcome.erase(0, 1);
  if (ending == kInvalid) throw InvalidArgument(printable(what + ": " + outcome));
  if (ending == kFailed) throw BackendError(printable(what + ": " + outcome));
}

}  // namespace

std::vector<std::string> on_all_ranks(const OperationOptions& options, const std::string& what,
                                      const std::function<std::string()>& work) {
  const std::vector<int>& ranks = runtime::chosen(options.process_set).ranks();
  std::vector<std::string> outcomes = allgather_object(outcome_of(work), options);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string rank = "rank " + std::to_string(ranks[i]);
    if (outcomes[i].empty()) throw InvalidArgument(what + ": " + rank + " has joined");
    require_done(outcomes[i], what + ": on " + rank);
  }
  return outcomes;
}

Readers::Readers(const OperationOptions& options)
    : set_(&runtime::chosen(options.process_set)),
      prefix_(options.name.empty() ? set_->next_name("read") : options.name),
      timeout_(options.timeout) {}

Readers Readers::this_process() { return Readers(nullptr); }

std::chrono::nanoseconds Readers::timeout() const {
  if (timeout_) return *timeout_;
  return set_ != nullptr ? set_->runtime().config().timeout : Config::from_environment().timeout;
}

std::vector<std::string> Readers::run(const std::string& step, const std::string& what,
                                      const std::function<std::string()>& work) const {
  if (set_ != nullptr) {
    return on_all_ranks({.name = prefix_ + step, .timeout = timeout_, .process_set = set_}, what,
                        work);
  }
  std::string outcome = outcome_of(work);
  require_done(outcome, what);
  return {outcome};
}

}  // namespace kolo::train
