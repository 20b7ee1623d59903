#pragma once

#include <optional>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace kolo::train {

/// While it lives, this thread makes ordinary tensors, also within an InferenceMode of the program:
/// those made in that mode can never be trained or saved for backward(). Dtypes and devices need no
/// such guard: whatever is made here names its own.
class OrdinaryTensors {
 public:
  OrdinaryTensors() {
    if (!c10::InferenceMode::is_enabled()) return;
    mode_.emplace(false);
    no_grad_.emplace();  // leaving the mode has enabled it
  }

 private:
  std::optional<c10::InferenceMode> mode_;
  std::optional<at::NoGradGuard> no_grad_;
};

}  // namespace kolo::train
