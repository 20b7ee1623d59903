#pragma once

#include <cstdint>
#include <vector>

#include "base/simd_targets.hpp"

namespace kolo::test {

/// The SIMD targets for which kernels are compiled and which this machine can run, for tests that
/// cover all of them.
inline std::vector<std::int64_t> supported_simd_targets() {
  std::vector<std::int64_t> targets;
  for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    targets.push_back(rest & -rest);
  }
  return targets;
}

/// Kernels run for `target` during the lifetime of this object.
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
