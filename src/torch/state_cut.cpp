#include "torch/state_cut.hpp"

#include <sstream>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

InputArchive to_input(OutputArchive& written) {
  std::stringstream stream;
  written.save_to(stream);
  InputArchive archive;
  archive.load_from(stream);
  return archive;
}

}  // namespace

std::unique_ptr<torch::optim::OptimizerParamState> cut_state(
    const torch::optim::OptimizerParamState& state, const at::Tensor& parameter, std::int64_t begin,
    std::int64_t count) {
  const at::NoGradGuard no_grad;
  std::unique_ptr<torch::optim::OptimizerParamState> piece = state.clone();
  try {
    OutputArchive whole;
    state.serialize(whole);
    InputArchive fields = to_input(whole);
    OutputArchive cut;
    for (const std::string& key : fields.keys()) {
      c10::IValue value;
      fields.read(key, value);
      if (value.isTensor() && value.toTensor().sizes() == parameter.sizes()) {
        value = value.toTensor().contiguous().view(-1).narrow(0, begin, count).clone();
      }
      cut.write(key, value);
    }
    InputArchive archive = to_input(cut);
    piece->serialize(archive);
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        std::string("the wrapped optimizer has state already, which cannot be divided among the "
                    "ranks for want of its serialize(): ") +
        error.what_without_backtrace() + " Wrap it before its first step().");
  }
  return piece;
}

}  // namespace kolo::tensors
