#include "train/random/model.hpp"

#include <stdexcept>
#include <unordered_set>

#include "train/models.hpp"

namespace kolo::random_training {
namespace {

at::Tensor ramp(double phase, at::IntArrayRef shape, double shift) {
  const std::int64_t count = c10::multiply_integers(shape);
  const at::Tensor values = torch::arange(count, torch::kFloat64) + phase;
  return (values.sin() * 0.4 + shift).view(shape).clone();
}

}  // namespace

/// A residual layer.
class Layer : public torch::nn::Module {
 public:
  Layer(LayerKind kind, int number, const Layer* tied, double shift) : kind_(kind) {
    switch (kind) {
      case LayerKind::Plain:
        weight_ = register_parameter("weight", ramp(3.0 * number, {kWidth, kWidth}, shift));
        bias_ = register_parameter("bias", ramp(number, {kWidth}, shift));
        break;
      case LayerKind::Tied:
        weight_ = register_parameter("weight", tied->weight_);
        bias_ = register_parameter("bias", ramp(number, {kWidth}, shift));
        break;
      case LayerKind::Scalar:
        weight_ = register_parameter("weight", ramp(number, {}, shift));
        bias_ = register_parameter("bias", ramp(number + 1, {1}, shift));
        break;
      case LayerKind::Empty:
        weight_ = register_parameter("weight", torch::zeros({0, kWidth}, torch::kFloat64));
        break;
      case LayerKind::Complex:
        weight_ = register_parameter("weight", torch::complex(ramp(number, {kWidth}, shift),
                                                              ramp(number + 1, {kWidth}, shift)));
        break;
      case LayerKind::Unused:
        weight_ = register_parameter("weight", ramp(number, {5}, shift));
        break;
    }
  }

  at::Tensor forward(const at::Tensor& x) const {
    switch (kind_) {
      case LayerKind::Plain:
      case LayerKind::Tied: return x + 0.5 * torch::tanh(x.matmul(weight_) + bias_);
      case LayerKind::Scalar: return x + 0.3 * torch::tanh(x * weight_ + bias_);
      case LayerKind::Empty: return x + weight_.sum();
      case LayerKind::Complex: return x + 0.3 * torch::tanh(torch::real(x * weight_));
      case LayerKind::Unused: break;
    }
    return x;
  }

 private:
  const LayerKind kind_;
  at::Tensor weight_, bias_;
};

Model::Model(const ModelPlan& plan, Layers present, double shift) : plan_(plan) {
  for (int i = 0; i < plan.networks; ++i) {
    networks_.push_back(std::make_shared<torch::nn::Module>());
  }
  for (int i = 0; i < plan.count(); ++i) {
    const LayerPlan& layer = plan.layer(i);
    const Layer* const tied =
        layer.tied_to >= 0 ? layers_[static_cast<std::size_t>(layer.tied_to)].get() : nullptr;
    layers_.push_back(std::make_shared<Layer>(layer.kind, i, tied, has(present, i) ? shift : 0.0));
    if (has(present, i)) add(i);
  }
}

void Model::add(int layer) {
  const auto i = static_cast<std::size_t>(layer);
  const auto network = static_cast<std::size_t>(plan_.layer(layer).network);
  networks_[network]->register_module("layer" + std::to_string(layer), layers_[i]);
  present_ |= Layers{1} << layer;
}

void Model::add_buffer(double value) {
  networks_.front()->register_buffer("buffer" + std::to_string(networks_.front()->buffers().size()),
                                     torch::full({2}, value, torch::kFloat64));
}

at::Tensor Model::loss(const at::Tensor& rows, Layers networks, Layers used, int failing) const {
  at::Tensor x = rows;
  for (int i = 0; i < plan_.count(); ++i) {
    if (!has(used & present_, i) || !has(networks, plan_.layer(i).network)) continue;
    x = layers_[static_cast<std::size_t>(i)]->forward(x);
    if (i != failing || !x.requires_grad()) continue;
    x.register_hook([](const at::Tensor&) { throw std::runtime_error("a bad batch"); });
  }
  return (x - rows.flip(1)).square().sum();
}

std::vector<Parameter> Model::of_layer(int layer) const {
  std::vector<Parameter> own;
  const auto& module = *layers_[static_cast<std::size_t>(layer)];
  for (const auto& item : module.named_parameters()) {
    if (plan_.layer(layer).kind == LayerKind::Tied && item.key() == "weight") continue;
    own.emplace_back("layer" + std::to_string(layer) + "." + item.key(), item.value());
  }
  return own;
}

std::vector<Parameter> Model::parameters() const {
  std::vector<Parameter> all;
  for (int i = 0; i < plan_.count(); ++i) {
    if (!has(present_, i)) continue;
    for (Parameter& each : of_layer(i)) all.push_back(std::move(each));
  }
  return all;
}

at::Tensor Model::named(const std::string& name) const {
  for (int i = 0; i < plan_.count(); ++i) {
    for (const Parameter& each : of_layer(i)) {
      if (each.first == name) return each.second;
    }
  }
  throw std::logic_error("no parameter " + name);
}

at::Tensor Model::flat() const {
  std::vector<at::Tensor> parts;
  const auto append = [&](const at::Tensor& tensor) {
    const at::Tensor values = tensor.detach().clone();
    parts.push_back((values.is_complex() ? torch::view_as_real(values) : values).flatten());
  };
  for (const Parameter& each : parameters()) append(each.second);
  for (const at::Tensor& buffer : buffers()) append(buffer);
  return torch::cat(parts);
}

at::Tensor rows_of(int batch, int rank, std::int64_t count) {
  return test::batch_rows(batch, 10 * rank, count, kWidth, torch::kFloat64);
}

}  // namespace kolo::random_training
