#pragma once

#include <functional>
#include <string>

#include "kolo/process_set.hpp"

namespace kolo::train {

/// The text of the exception that is being handled, without LibTorch's backtrace.
std::string text_of_current_error();

/// Runs `work` on all ranks. If it throws on any, all throw: that rank its own exception, which may
/// be the program's, the others InvalidArgument with `what`, the rank, `actor` and the exception's
/// text. With checkpoints::Ranks::run(), which also gathers results, all throw the same.
void run_or_throw_on_all(ProcessSet& set, const std::string& name, const std::string& what,
                         const std::string& actor, const std::function<void()>& work);

}  // namespace kolo::train
