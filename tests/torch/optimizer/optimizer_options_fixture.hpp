#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/runtime.hpp"
#include "support/mpi/test_world.hpp"

namespace kolo::test::optimizer_options_test {

class OptimizerOptionsTest : public testing::Test {
 protected:
  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  bool is_last() const { return rank() == size() - 1; }
  std::string last() const { return "rank " + std::to_string(size() - 1); }

  /// Parameters of 1, 2, 3, … elements.
  static std::vector<at::Tensor> make_parameters(int count) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < count; ++i) {
      parameters.push_back(torch::zeros({i + 1}, torch::requires_grad()));
    }
    return parameters;
  }
  /// Adds the gradient (i + 1) * (rank + 1) * factor to every element of parameter i.
  void backward(const std::vector<at::Tensor>& parameters, double factor = 1.0) const {
    at::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      loss = loss + parameters[i].sum() * (static_cast<double>(i + 1) * (rank() + 1) * factor);
    }
    loss.backward();
  }
  double mean(std::size_t i) const { return static_cast<double>(i + 1) * (size() + 1) / 2; }
  void expect_means(const std::vector<at::Tensor>& parameters) const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i].grad(),
                                  torch::full({static_cast<std::int64_t>(i) + 1}, mean(i))))
          << i << ": " << parameters[i].grad();
    }
  }

  template <class Error>
  void expect_error(const std::function<void()>& make, const std::vector<std::string>& texts) {
    try {
      make();
      ADD_FAILURE() << "went through, without " << texts.front();
    } catch (const Error& error) {
      for (const std::string& text : texts) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
            << text << " is not in: " << error.what();
      }
    }
  }

  Runtime runtime_{in_test_world()};
};

}  // namespace kolo::test::optimizer_options_test
