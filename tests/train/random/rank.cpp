#include "train/random/rank.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "kolo/torch/parameter_sync.hpp"

namespace kolo::random_training {
namespace {

/// Ranks begin with different values, of which all get those of rank 0.
double shift_of(const Runtime& runtime) { return 0.1 * runtime.rank(); }

}  // namespace

Rank::Rank(const Plan& plan, const Setup& setup, const Structure& structure, Runtime& runtime,
           std::filesystem::path folder)
    : plan_(plan),
      setup_(setup),
      runtime_(runtime),
      folder_(std::move(folder)),
      model_(make_model(plan.model, structure, shift_of(runtime))),
      scaler_(scaler_options(setup.scales)) {
  for (int o = 0; o < plan.optimizers(); ++o) {
    const auto i = static_cast<std::size_t>(o);
    Trained& trained = trained_.emplace_back();
    trained.owned = make_plain(plan.classes[i], structure.groups[i], model_);
    trained.wrapped = trained.owned.get();
    plan.is_accelerated ? accelerate() : wrap(o);
  }
  for (int i = 0; i < plan.model.networks; ++i) broadcast_parameters(model_.network(i), 0);
}

Rank::~Rank() {
  accelerator_.reset();
  while (!trained_.empty()) trained_.pop_back();  // the last wrapped first
}

void Rank::accelerate() {
  AcceleratorOptions options;
  options.optimizer = setup_.options();
  options.shard = std::exchange(options.optimizer.shard, std::nullopt);
  options.gradient_accumulation_steps = setup_.accumulation;
  if (setup_.scales) options.mixed_precision = Precision::Float16;  // casts no float64
  options.scaler = scaler_options(true);
  accelerator_ = std::make_unique<Accelerator>(options);
  accelerator_->prepare(model_.network(0), *at(0).owned);
}

void Rank::wrap(int index) {
  Trained& trained = at(index);
  const DistributedOptimizerOptions options = setup_.options();
  const bool are_both = plan_.model.networks > 1 && plan_.split == Split::None;
  NamedModules network = model_.network(plan_.split == Split::ByNetwork ? index : 0);
  if (are_both) network = {{"", model_.network(0)}, {"", model_.network(1)}};
  trained.wrapper =
      setup_.owns_optimizer
          ? std::make_unique<DistributedOptimizer>(std::move(trained.owned), network, options)
          : std::make_unique<DistributedOptimizer>(*trained.owned, network, options);
}

at::Tensor Rank::loss(const Pass& pass, int share_of) const {
  const Share& share = pass.of(share_of);
  if (share.rows == 0) return {};
  at::Tensor loss = model_.loss(rows_of(pass.batch, share_of, share.rows), pass.networks,
                                share.used, pass.failing);
  if (!pass.is_counted) loss = loss / share.rows;
  if (pass.overflowing == share_of) loss = loss * std::numeric_limits<double>::infinity();
  return loss;
}

void Rank::run(const Pass& pass, int share_of) {
  std::vector<std::unique_ptr<DistributedOptimizer::Guard>> guards;
  for (int o = 0; pass.is_local && o < optimizers(); ++o) {
    guards.emplace_back(new DistributedOptimizer::Guard(optimizer(o).no_sync()));
  }
  const at::Tensor loss = scaler_.scale(this->loss(pass, share_of));
  if (!pass.is_counted) return loss.backward();
  // The one whose parameters it uses.
  int counting = 0;
  if (plan_.split == Split::ByNetwork && !has(pass.networks, 0)) counting = 1;
  optimizer(counting).backward(loss, pass.of(share_of).rows);
}

void require_near(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
  std::ostringstream text;
  if (got.sizes() != expected.sizes()) {
    text << what << " has shape " << got.sizes() << ", not " << expected.sizes();
    throw std::runtime_error(text.str());
  }
  if (got.numel() == 0) return;
  const at::Tensor difference = (got - expected).abs();
  const at::Tensor bound = 1e-7 * (1.0 + expected.abs());
  if (difference.le(bound).all().item<bool>()) return;
  const auto worst = difference.flatten().argmax().item<std::int64_t>();
  text << what << " differs at " << worst << " of " << got.numel() << ": "
       << got.flatten()[worst].item() << ", not " << expected.flatten()[worst].item();
  throw std::runtime_error(text.str());
}

void require_near(const std::string& what, double got, double expected) {
  if (std::abs(got - expected) <= 1e-7 * (1.0 + std::abs(expected))) return;
  throw std::runtime_error(what + " is " + std::to_string(got) + ", not " +
                           std::to_string(expected));
}

}  // namespace kolo::random_training
