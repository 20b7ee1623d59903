#include "train/gradients/residuals.hpp"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace kolo::train {

template <class Visit>
void Residuals::for_each_member(std::size_t bucket, const Visit& visit) const {
  const Bucket& plan = buckets_[bucket];
  const std::size_t begin = parts_[bucket].begin;
  const std::size_t end = begin + parts_[bucket].count;
  for (const Bucket::Member& member : plan.members_by_offset()) {
    const at::Tensor& parameter = parameters_[member.parameter];
    const std::size_t first = (member.offset - plan.offset) / size_of(plan.dtype);
    const std::size_t own_begin = std::max(first, begin);
    const std::size_t own_end = std::min(first + static_cast<std::size_t>(parameter.numel()), end);
    if (own_begin >= own_end) continue;
    visit(parameter, static_cast<std::int64_t>(own_begin - first),
          static_cast<std::int64_t>(own_begin - begin),
          static_cast<std::int64_t>(own_end - own_begin));
  }
}

void Residuals::lay_out(const std::vector<Bucket>& buckets, const std::vector<Part>& parts,
                        const std::vector<at::Tensor>& parameters, const ByParameter& residuals) {
  const at::NoGradGuard no_grad;
  buckets_ = buckets;
  parts_ = parts;
  parameters_ = parameters;
  residuals_ = std::vector<Residual>(buckets.size());
  const bool is_open = std::ranges::any_of(
      residuals, [](const auto& each) { return !each.second.before.is_same(each.second.now); });
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (parts[i].count == 0) continue;
    Residual& residual = residuals_[i];
    residual.is_open = is_open;
    residual.now = at::zeros({static_cast<std::int64_t>(parts[i].count)},
                             at::TensorOptions(at::kFloat).device(parameters.front().device()));
    if (is_open) residual.before = at::zeros_like(residual.now);
    for_each_member(i, [&](const at::Tensor& parameter, std::int64_t first, std::int64_t place,
                           std::int64_t count) {
      const auto found = residuals.find(parameter.unsafeGetTensorImpl());
      if (found == residuals.end()) return;
      const ParameterResidual& old = found->second;
      const std::int64_t begin = std::max(first, old.begin);
      const std::int64_t length = std::min(first + count, old.begin + old.now.numel()) - begin;
      if (length <= 0) return;
      const auto copy = [&](const at::Tensor& to, const at::Tensor& from) {
        to.narrow(0, place + begin - first, length)
            .copy_(from.narrow(0, begin - old.begin, length));
      };
      copy(residual.now, old.now);
      if (is_open) copy(residual.before, old.before);
    });
  }
}

Residuals::ByParameter Residuals::take() {
  const at::NoGradGuard no_grad;
  ByParameter residuals;
  for (std::size_t i = 0; i < residuals_.size(); ++i) {
    Residual& residual = residuals_[i];
    if (!residual.now.defined()) continue;
    apply_factor(residual);
    for_each_member(i, [&](const at::Tensor& parameter, std::int64_t first, std::int64_t place,
                           std::int64_t count) {
      const at::Tensor now = residual.now.narrow(0, place, count);
      residuals[parameter.unsafeGetTensorImpl()] = {
          first, now, residual.is_open ? residual.before.narrow(0, place, count) : now};
    });
  }
  residuals_.clear();
  return residuals;
}

at::Tensor Residuals::begin(std::size_t bucket) {
  if (bucket >= residuals_.size() || !residuals_[bucket].now.defined()) return {};
  const at::NoGradGuard no_grad;
  Residual& residual = residuals_[bucket];
  apply_factor(residual);
  zero_gaps(bucket);
  if (!std::exchange(residual.is_open, true)) {
    if (!residual.before.defined()) residual.before = at::empty_like(residual.now);
    residual.before.copy_(residual.now);
  }
  return residual.now;
}

/// Residuals that belong to no parameter would be missing from checkpoints, and would change how
/// their block is encoded.
void Residuals::zero_gaps(std::size_t bucket) {
  const at::Tensor& now = residuals_[bucket].now;
  std::int64_t end = 0;
  const auto zero_up_to = [&](std::int64_t begin) { now.narrow(0, end, begin - end).zero_(); };
  for_each_member(bucket,
                  [&](const at::Tensor&, std::int64_t, std::int64_t place, std::int64_t count) {
                    zero_up_to(place);
                    end = place + count;
                  });
  zero_up_to(now.numel());
}

void Residuals::keep() {
  for (Residual& residual : residuals_) residual.is_open = false;
}

void Residuals::restore() {
  for (Residual& residual : residuals_) {
    if (std::exchange(residual.is_open, false)) std::swap(residual.now, residual.before);
  }
}

void Residuals::rescale(double factor) {
  // Applied later, since reductions may be in flight.
  for (Residual& residual : residuals_) residual.pending *= factor;
}

Residuals::ByParameter Residuals::before_step() {
  const at::NoGradGuard no_grad;
  ByParameter residuals;
  for (std::size_t i = 0; i < residuals_.size(); ++i) {
    Residual& residual = residuals_[i];
    if (!residual.now.defined()) continue;
    if (!residual.is_open) apply_factor(residual);
    const at::Tensor& kept = residual.is_open ? residual.before : residual.now;
    const at::Tensor all = residual.pending == 1.0 ? kept : kept * residual.pending;
    for_each_member(i, [&](const at::Tensor& parameter, std::int64_t first, std::int64_t place,
                           std::int64_t count) {
      const at::Tensor own = all.narrow(0, place, count);
      residuals[parameter.unsafeGetTensorImpl()] = {first, own, own};
    });
  }
  return residuals;
}

std::size_t Residuals::size_bytes() const {
  std::size_t bytes = 0;
  for (const Residual& residual : residuals_) {
    for (const at::Tensor& tensor : {residual.now, residual.before}) {
      if (tensor.defined()) bytes += tensor.nbytes();
    }
  }
  return bytes;
}

void Residuals::apply_factor(Residual& residual) {
  const double factor = std::exchange(residual.pending, 1.0);
  if (factor == 1.0) return;
  residual.now.mul_(factor);
  if (residual.is_open) residual.before.mul_(factor);
}

}  // namespace kolo::train
