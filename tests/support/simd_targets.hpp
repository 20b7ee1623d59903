#pragma once

#include <cstdint>
#include <vector>

#include "base/simd_targets.hpp"

namespace kolo::test {

/// The SIMD targets that kernels are compiled for and this machine can run, for tests that go
/// through all of them.
inline std::vector<std::int64_t> supported_simd_targets() {
  std::vector<std::int64_t> targets;
  for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    targets.push_back(rest & -rest);
  }
  return targets;
}

/// Kernels run for `target` as long as this lives.
class SimdTargetGuard {
 public:
  explicit SimdTargetGuard(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  SimdTargetGuard(const SimdTargetGuard&) = delete;  // one choice at a time
  SimdTargetGuard& operator=(const SimdTargetGuard&) = delete;
  ~SimdTargetGuard() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace kolo::test
