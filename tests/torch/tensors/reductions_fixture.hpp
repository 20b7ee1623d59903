#pragma once

#include <cstdint>

#include "torch/torch_fixture.hpp"

namespace kolo::test::reductions_test {

class ReductionsTest : public TorchTest {
 protected:
  using TorchTest::TorchTest;

  /// This rank's rows of a reduced tensor.
  at::Tensor rows_of(const at::Tensor& whole) const {
    std::int64_t first = 0;
    for (int r = 0; r < rank(); ++r) first += scattered_rows(whole.size(0), size(), r);
    return whole.narrow(0, first, scattered_rows(whole.size(0), size(), rank()));
  }
};

}  // namespace kolo::test::reductions_test
