#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kolo/process_set.hpp"

namespace kolo::train {

/// A value that must be equal on all ranks: {"op", "average"}. Without zero bytes.
struct Fact {
  std::string name;
  std::string value;
};

/// Compares facts between the ranks of a set, so that a mistake on one is an error on all.
/// Collective and blocking, under the name `name`. Throws InvalidArgument with the text and the
/// rank if any rank has a `problem`, or MismatchError with both values if facts differ; texts begin
/// with `what`, and that of a MismatchError ends with `advice`. Ranks without facts are not
/// compared.
void agree(ProcessSet& set, const std::string& name, const std::string& what,
           const std::vector<Fact>& facts, const std::string& problem,
           const std::string& advice = "Give the same on every rank.");

/// The text of the exception that is being handled, without LibTorch's backtrace.
std::string text_of_current_error();

/// Runs `work` on all ranks. If it throws on any, all throw: that rank its own exception, the
/// others InvalidArgument with `what`, the rank, `actor` and the exception's text.
void run_on_all(ProcessSet& set, const std::string& name, const std::string& what,
                const std::string& actor, const std::function<void()>& work);

}  // namespace kolo::train
