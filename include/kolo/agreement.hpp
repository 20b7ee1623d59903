#pragma once

#include <string>
#include <vector>

#include "kolo/collectives.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// A value of this rank, and what to call it: {"batch_size", "32"}. Without zero bytes.
struct NamedValue {
  std::string name;
  std::string value;
};

/// Compares values between the ranks of a set, so that a mistake on one rank is an error on all:
///
///     kolo::check_agreement("train()", {{"epochs", std::to_string(epochs)}},
///                           data.empty() ? "there are no data" : "");
///
/// Collective and blocking. Ranks that have joined are left out, and ranks without values have none
/// to compare.
/// @param what begins the texts of errors: the call, such as "train()"
/// @param values must be equal on all ranks, in names and order too
/// @param problem why this rank cannot go on; empty if it can
/// @param advice ends the text of a MismatchError: what to do
/// @throws InvalidArgument on all ranks, with the text and the rank, if any has a problem
/// @throws MismatchError on all ranks, with both values and ranks, if values differ
/// @throws the errors of all collectives
void check_agreement(const std::string& what, const std::vector<NamedValue>& values,
                     const std::string& problem = {}, const OperationOptions& options = {},
                     const std::string& advice = "Give the same on every rank.");

}  // namespace kolo
#pragma GCC visibility pop
