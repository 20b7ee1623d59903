#include "checkpoint/ranks.hpp"

#include "checkpoint/untrusted_text.hpp"
#include "kolo/config.hpp"
#include "kolo/error.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "runtime/api/collectives.hpp"

namespace kolo::checkpoints {
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

Ranks::Ranks(const OperationOptions& options)
    : set_(&runtime::set_or_world(options.process_set)),
      prefix_(options.name.empty() ? set_->next_name("checkpoint") : options.name),
      timeout_(options.timeout) {}

Ranks Ranks::this_process() { return Ranks(nullptr); }

std::chrono::nanoseconds Ranks::timeout() const {
  if (timeout_) return *timeout_;
  return set_ != nullptr ? set_->runtime().config().timeout : Config::from_environment().timeout;
}

std::vector<std::string> Ranks::run(const std::string& step, const std::string& what,
                                    const std::function<std::string()>& work) const {
  if (set_ == nullptr) {
    std::string outcome = outcome_of(work);
    require_done(outcome, what);
    return {outcome};
  }
  std::vector<std::string> outcomes = allgather_object(
      outcome_of(work), {.name = prefix_ + step, .timeout = timeout_, .process_set = set_});
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string rank = "rank " + std::to_string(world_rank(i));
    if (outcomes[i].empty()) throw InvalidArgument(what + ": " + rank + " has joined");
    require_done(outcomes[i], what + ": on " + rank);
  }
  return outcomes;
}

}  // namespace kolo::checkpoints
