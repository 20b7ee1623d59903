#include "train/tensors/run_or_throw_on_all.hpp"

#include <exception>

#include <c10/util/Exception.h>

#include "base/text.hpp"
#include "kolo/agreement.hpp"
#include "kolo/error.hpp"

namespace kolo::train {

std::string text_of_current_error() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (...) {
    return text_of_current_exception();
  }
}

void run_or_throw_on_all(ProcessSet& set, const std::string& name, const std::string& what,
                         const std::string& actor, const std::function<void()>& work) {
  std::exception_ptr error;
  std::string problem;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
    problem = actor + " threw: " + text_of_current_error();
  }
  try {
    check_agreement(what, {}, problem, {.name = name, .process_set = &set});
  } catch (const InvalidArgument&) {
    if (error) std::rethrow_exception(error);
    throw;
  }
}

}  // namespace kolo::train
