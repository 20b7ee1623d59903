#include "kolo/extras/adamw_8bit.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <type_traits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "extras/archived_fields.hpp"

namespace kolo {
namespace {

constexpr std::int64_t kBlock = 256;
constexpr std::int64_t kLeast = 4096;  // elements with state of 8 bits

template <class Options, class Visit>
  requires std::same_as<std::remove_const_t<Options>, AdamW8bitOptions>
void visit_fields(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("has_8bits", options.has_8bits());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
}
template <class State, class Visit>
  requires std::same_as<std::remove_const_t<State>, AdamW8bitParamState>
void visit_fields(State& state, const Visit& visit) {
  visit("step", state.step());
  visit("exp_avg", state.exp_avg());
  visit("exp_avg_sq", state.exp_avg_sq());
  visit("exp_avg_max", state.exp_avg_max());
  visit("exp_avg_sq_max", state.exp_avg_sq_max());
}

/// The levels of a block are spaced evenly in the logarithm: `most` is its greatest value, 1 is
/// `octaves` below. So all values are about as exact, as Adam needs, which divides one by another.
struct Code {
  at::ScalarType type;
  double least;  // of what is not 0: a mean is never divided by the root of a square that became 0
  double most;
  double octaves;

  double octaves_per_level() const { return octaves / (most - 1.0); }
  /// The shares of the greatest value that these levels stand for.
  at::Tensor shares(const at::Tensor& levels) const {
    return at::exp2((levels - most) * octaves_per_level()).masked_fill_(levels < 0.5, 0.0);
  }
};
constexpr Code kMean{at::kChar, 0.0, 127.0, 20.0};
constexpr Code kSquare{at::kByte, 1.0, 255.0, 40.0};

/// [blocks, kBlock] of [n], the last one filled up with zeros.
at::Tensor in_blocks(const at::Tensor& flat) {
  const std::int64_t rest = (kBlock - flat.numel() % kBlock) % kBlock;
  return (rest == 0 ? flat : at::constant_pad_nd(flat, {0, rest})).view({-1, kBlock});
}

at::Tensor decoded(const at::Tensor& codes, const at::Tensor& greatest, const Code& code) {
  const at::Tensor levels = in_blocks(codes).to(at::kFloat);
  const at::Tensor values = code.shares(levels.abs()) * levels.sign() * greatest.unsqueeze(1);
  return values.view({-1}).narrow(0, 0, codes.numel());
}

/// Numbers in [0, 1) that fill it evenly over the steps, for each element: rounding to the nearest
/// would bring a square that decays by a thousandth back to what it was, for ever. The same in
/// every run and shard mode.
at::Tensor dither(std::int64_t first_block, std::int64_t blocks, std::int64_t step,
                  const at::TensorOptions& type) {
  const auto sequence = [&](std::int64_t begin, std::int64_t count, double ratio) {
    return at::arange(begin, begin + count, type.dtype(at::kDouble)) * ratio;
  };
  const at::Tensor numbers = sequence(first_block, blocks, 0.7548776662466927).unsqueeze(1) +
                             sequence(0, kBlock, 0.5698402909980532) +
                             0.6180339887498949 * static_cast<double>(step);
  return numbers.frac().to(at::kFloat);
}

/// `codes` and `greatest` are those of some blocks, the first of which has the number
/// `first_block`.
void encode(const at::Tensor& values, const Code& code, std::int64_t step, std::int64_t first_block,
            const at::Tensor& codes, const at::Tensor& greatest) {
  const at::Tensor blocks = in_blocks(values).to(at::kFloat);
  greatest.copy_(blocks.abs().amax(1));
  const at::Tensor magnitudes =
      blocks.abs() / greatest.masked_fill(greatest == 0.0, 1.0).unsqueeze(1);
  at::Tensor levels = (at::log2(magnitudes) / code.octaves_per_level() + code.most)
                          .floor_()
                          .clamp_(code.least, code.most);
  // The share of steps in which it is the level above: on average, values are exact.
  const at::Tensor below = code.shares(levels);
  const at::Tensor above = code.shares(levels + 1.0);
  levels += (magnitudes - below) / (above - below) >
            dither(first_block, blocks.size(0), step, blocks.options());
  codes.copy_(
      levels.clamp_max_(code.most).mul_(blocks.sign()).view({-1}).narrow(0, 0, codes.numel()));
}

void check(const AdamW8bitOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK(options.lr() >= 0.0, "AdamW8bit: lr is ", options.lr(), ", it must be 0 or more");
  TORCH_CHECK(options.weight_decay() >= 0.0, "AdamW8bit: weight_decay is ", options.weight_decay(),
              ", it must be 0 or more");
  TORCH_CHECK(beta1 >= 0.0 && beta1 < 1.0 && beta2 >= 0.0 && beta2 < 1.0, "AdamW8bit: betas are ",
              beta1, " and ", beta2, ", they must be in [0, 1)");
  TORCH_CHECK(options.eps() >= 0.0, "AdamW8bit: eps is ", options.eps(), ", it must be 0 or more");
}

/// Steps elements [n], whose means are of a type at least as wide.
void step_elements(const at::Tensor& elements, const at::Tensor& gradient, const at::Tensor& mean,
                   const at::Tensor& square, std::int64_t step, const AdamW8bitOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(step);
  const at::Tensor own = gradient.to(mean.scalar_type());
  mean.lerp_(own, 1.0 - beta1);
  square.mul_(beta2).addcmul_(own, own, 1.0 - beta2);
  const double correction = std::sqrt(1.0 - std::pow(beta2, steps));
  const at::Tensor scale = (square.sqrt() / correction).add_(options.eps());
  elements.mul_(1.0 - options.lr() * options.weight_decay());
  elements.sub_((mean / scale).mul_(options.lr() / (1.0 - std::pow(beta1, steps))));
}

void step_whole(const at::Tensor& parameter, AdamW8bitParamState& state,
                const AdamW8bitOptions& options) {
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter));
    state.exp_avg_sq(at::zeros_like(parameter));
  }
  state.step(state.step() + 1);
  step_elements(parameter, parameter.grad(), state.exp_avg(), state.exp_avg_sq(), state.step(),
                options);
}

/// A few blocks at a time: decoded, means have four times the bytes of the state.
void step_coded(const at::Tensor& parameter, AdamW8bitParamState& state,
                const AdamW8bitOptions& options) {
  constexpr std::int64_t kBlocks = 4096;
  const std::int64_t count = parameter.numel();
  if (!state.exp_avg().defined()) {
    const std::int64_t blocks = (count + kBlock - 1) / kBlock;
    const at::TensorOptions type = parameter.options().requires_grad(false);
    state.exp_avg(at::zeros(parameter.sizes(), type.dtype(kMean.type)));
    state.exp_avg_sq(at::zeros(parameter.sizes(), type.dtype(kSquare.type)));
    state.exp_avg_max(at::zeros({blocks}, type.dtype(at::kFloat)));
    state.exp_avg_sq_max(at::zeros({blocks}, type.dtype(at::kFloat)));
  }
  state.step(state.step() + 1);
  const at::Tensor elements = parameter.reshape({-1});  // a copy, if it is not contiguous
  const at::Tensor gradient = parameter.grad().reshape({-1});
  const at::Tensor mean_codes = state.exp_avg().view({-1});
  const at::Tensor square_codes = state.exp_avg_sq().view({-1});
  for (std::int64_t begin = 0; begin < count; begin += kBlocks * kBlock) {
    const std::int64_t length = std::min(count - begin, kBlocks * kBlock);
    const std::int64_t first = begin / kBlock;
    const auto some = [&](const at::Tensor& all) { return all.narrow(0, begin, length); };
    const auto greatest = [&](const at::Tensor& all) {
      return all.narrow(0, first, (length + kBlock - 1) / kBlock);
    };
    const at::Tensor mean = decoded(some(mean_codes), greatest(state.exp_avg_max()), kMean);
    const at::Tensor square =
        decoded(some(square_codes), greatest(state.exp_avg_sq_max()), kSquare);
    step_elements(some(elements), some(gradient), mean, square, state.step(), options);
    encode(mean, kMean, state.step(), first, some(mean_codes), greatest(state.exp_avg_max()));
    encode(square, kSquare, state.step(), first, some(square_codes),
           greatest(state.exp_avg_sq_max()));
  }
  if (!elements.is_alias_of(parameter)) parameter.copy_(elements.view(parameter.sizes()));
}

}  // namespace

void AdamW8bitOptions::serialize(torch::serialize::InputArchive& archive) {
  visit_fields(*this, extras::FieldReader{archive});
}
void AdamW8bitOptions::serialize(torch::serialize::OutputArchive& archive) const {
  visit_fields(*this, extras::FieldWriter{archive});
}
void AdamW8bitParamState::serialize(torch::serialize::InputArchive& archive) {
  visit_fields(*this, extras::FieldReader{archive});
}
void AdamW8bitParamState::serialize(torch::serialize::OutputArchive& archive) const {
  visit_fields(*this, extras::FieldWriter{archive});
}

AdamW8bit::AdamW8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const AdamW8bitOptions& defaults)
    : Optimizer(groups, std::make_unique<AdamW8bitOptions>(defaults)) {
  for (auto& group : param_groups()) check(static_cast<const AdamW8bitOptions&>(group.options()));
}

at::Tensor AdamW8bit::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const AdamW8bitOptions&>(group.options());
    for (at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      TORCH_CHECK(!parameter.grad().is_sparse() && !parameter.is_complex(),
                  "AdamW8bit takes neither sparse gradients nor complex parameters");
      auto& state = this->state()[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) state = std::make_unique<AdamW8bitParamState>();
      const bool is_coded = options.has_8bits() && parameter.numel() >= kLeast;
      (is_coded ? step_coded : step_whole)(parameter, static_cast<AdamW8bitParamState&>(*state),
                                           options);
    }
  }
  return loss;
}

void AdamW8bit::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamW8bitParamState, AdamW8bitOptions>(archive, *this);
}
void AdamW8bit::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamW8bitParamState, AdamW8bitOptions>(archive, *this);
}

}  // namespace kolo
