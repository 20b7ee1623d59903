#pragma once

#include <string>
#include <vector>

#include "kolo/process_set.hpp"

namespace kolo::tensors {

/// Something that all ranks must have chosen alike: {"op", "average"}. No zero bytes.
struct Fact {
  std::string name;
  std::string value;
};

/// Compares what the ranks of a set are about to do, so that a mistake on one of them is an error
/// on all. Collective and blocking, under the name `name`. Throws InvalidArgument where any rank
/// has a `problem`, with its text and the rank, otherwise MismatchError where facts differ, with
/// both values; texts begin with `what`.
void agree(ProcessSet& set, const std::string& name, const std::string& what,
           const std::vector<Fact>& facts, const std::string& problem);

}  // namespace kolo::tensors
