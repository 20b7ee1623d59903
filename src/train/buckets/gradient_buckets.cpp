#include "train/buckets/gradient_buckets.hpp"

#include <cstring>
#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "comm/gpu/gpu.hpp"
#include "kolo/process_set.hpp"
#include "kolo/torch/program_stream.hpp"
#include "runtime/engine/engine.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

// The positions of a rank's flags, counted from the end.
constexpr std::int64_t kActive = -1;
constexpr std::int64_t kCounted = -2;

constexpr std::int64_t kDigestBits = Bucket::kDigestBits;

/// The flags of a bucket's digest.
at::Tensor digest_in(const at::Tensor& flags, const Bucket& bucket) {
  return flags.narrow(0, static_cast<std::int64_t>(bucket.members.size()), 2 * kDigestBits);
}

/// Sums of these flags of several ranks show whether all digests are equal: a bit that differs is
/// set in one and its complement in another.
void set_digest(const at::Tensor& flags, std::uint32_t digest) {
  const at::Tensor bits = at::empty({2 * kDigestBits}, at::kFloat);
  auto* const values = bits.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < kDigestBits; ++i) {
    const bool bit = (digest >> i & 1U) != 0;
    values[i] = bit ? 1.0F : 0.0F;
    values[kDigestBits + i] = bit ? 0.0F : 1.0F;
  }
  at::Tensor(flags).copy_(bits);
}

}  // namespace

std::string refusal_of_gradient(const std::string& name) {
  return "DistributedOptimizer: the gradient of parameter '" + name +
         "' is being reduced over the ranks: it can be neither read nor changed. Call "
         "synchronize() of the DistributedOptimizer first. Its clip_grad_norm_() and step() do "
         "that; those of LibTorch do not.";
}

GradientBuckets::GradientBuckets(const std::vector<at::Tensor>& parameters, BucketPlan plan,
                                 const std::vector<bool>& sparse, const OperationOptions& options)
    : parameters_(parameters),
      set_(&member_set(options.process_set)),
      plan_(std::move(plan)),
      memory_(make_flat_memory(plan_.size_bytes, device(), options)),
      views_(parameters.size()) {
  for (const Bucket& bucket : plan_.buckets) {
    const at::TensorOptions type = type_of(bucket);
    for (const Bucket::Member& member : bucket.members) {
      if (sparse[member.parameter]) continue;
      views_[member.parameter] =
          tensor_over(memory_, member.offset, parameters_[member.parameter].sizes(), type);
    }
    const auto flag_count = static_cast<std::int64_t>(bucket.flag_count());
    flags_.push_back(has_separate_flags()
                         ? at::empty({flag_count}, at::kFloat)  // counts all ranks exactly
                         : tensor_over(memory_, bucket.flags_offset, {flag_count}, type));
  }
}

at::TensorOptions GradientBuckets::type_of(const Bucket& bucket) const {
  return at::TensorOptions(scalar_type_of(bucket.dtype)).device(device());
}

at::Tensor GradientBuckets::flat(const Bucket& bucket) const {
  return tensor_over(memory_, bucket.offset, {static_cast<std::int64_t>(bucket.gradient_count())},
                     type_of(bucket));
}

bool GradientBuckets::is_in_place(std::size_t parameter) const {
  const at::Tensor& gradient = parameters_[parameter].grad();
  return is_sparse(parameter) ? gradient.defined() : gradient.is_same(views_[parameter]);
}

/// In one launch for all gradients of a dtype, which also converts them to that of the views.
void GradientBuckets::copy_on_gpu(const std::vector<at::Tensor>& gradients,
                                  const std::vector<at::Tensor>& views, double factor) const {
  std::vector<at::Tensor> contiguous;
  std::map<DType, std::vector<comm::DeviceRun>> runs;
  for (std::size_t i = 0; i < views.size(); ++i) {
    contiguous.push_back(gradients[i].resolve_conj().resolve_neg().contiguous());
    const DType dtype = dtype_of(gradients[i]);
    runs[dtype].push_back({static_cast<const std::byte*>(contiguous.back().const_data_ptr()),
                           static_cast<std::byte*>(views[i].mutable_data_ptr()),
                           static_cast<std::size_t>(views[i].numel()) * parts_of(dtype)});
  }
  comm::Gpu& gpu = set_->engine()->gpu(device().index());
  auto* const stream = static_cast<comm::DeviceStream>(ProgramStream::current(device()).handle());
  const DType to = real_type(dtype_of(views.front()));
  for (const auto& [dtype, same] : runs) {
    gpu.convert(same, {.from = real_type(dtype), .to = to, .factor = factor}, stream);
  }
}

std::vector<at::Tensor> GradientBuckets::move_in(const std::vector<std::size_t>& parameters,
                                                 double factor) {
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> replaced;
  const at::NoGradGuard no_grad;
  for (const std::size_t parameter : parameters) {
    const bool is_new = !is_in_place(parameter);
    if (is_sparse(parameter) || (!is_new && factor == 1.0)) continue;
    const at::Tensor& gradient = parameters_[parameter].grad();
    views.push_back(views_[parameter]);
    gradients.push_back(gradient.is_sparse() ? gradient.to_dense() : gradient);
    if (is_new) replaced.push_back(gradient);
  }
  if (views.empty()) return {};
  if (device().is_cpu()) {
    at::_foreach_copy_(views, gradients);
  } else {
    copy_on_gpu(gradients, views, factor);
  }
  for (const std::size_t parameter : parameters) {
    if (!is_sparse(parameter)) parameters_[parameter].mutable_grad() = views_[parameter];
  }
  return replaced;
}

void GradientBuckets::widen(std::size_t parameter) {
  if (is_sparse(parameter)) return;
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const at::NoGradGuard no_grad;
  gradient = gradient.to(views_[parameter].scalar_type());
}

const at::Tensor& GradientBuckets::flags_of(const Bucket& bucket) const {
  return flags_[static_cast<std::size_t>(&bucket - plan_.buckets.data())];
}

std::vector<at::Tensor> GradientBuckets::fill(const Bucket& bucket, const RankFlags& own,
                                              const GradientStandIns* stand_ins, double factor) {
  const at::NoGradGuard no_grad;
  std::vector<std::size_t> present;
  const at::Tensor& flags = flags_of(bucket);
  flags.fill_(1);
  if (!own.is_active) flags[kActive] = 0;
  if (!own.has_counted) flags[kCounted] = 0;
  if (bucket.has_digest && own.digest) set_digest(digest_in(flags, bucket), *own.digest);
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const std::size_t parameter = bucket.members[i].parameter;
    const bool is_stand_in = stand_ins != nullptr && stand_ins->is_in_place(parameter);
    if (parameters_[parameter].grad().defined() && !is_stand_in) {
      present.push_back(parameter);
    } else {
      if (!is_sparse(parameter)) views_[parameter].zero_();
      flags[static_cast<std::int64_t>(i)] = 0;
    }
  }
  return move_in(present, factor);
}

void GradientBuckets::zero_gaps(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::size_t end = bucket.offset;
  const auto zero_up_to = [&](std::size_t begin) {
    if (begin == end) return;
    if (device().is_cpu()) {
      std::memset(memory_.data() + end, 0, begin - end);
      return;
    }
    const std::size_t element = size_of(bucket.dtype);
    const auto length = static_cast<std::int64_t>((begin - end) / element);
    tensor_over(memory_, end, {length}, type_of(bucket)).zero_();
  };
  for (const Bucket::Member& member : bucket.members_by_offset()) {
    if (is_sparse(member.parameter)) continue;
    zero_up_to(member.offset);
    end = member.offset + views_[member.parameter].nbytes();
  }
  zero_up_to(bucket.flags_offset);
}

void GradientBuckets::set_refusals(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (is_sparse(i)) continue;
    set_refusal(views_[i].storage(), refusal_of_gradient(names[i]));
  }
}

void GradientBuckets::refuse(const Bucket& bucket, Refused refused) {
  for (const Bucket::Member& member : bucket.members) {
    if (is_sparse(member.parameter)) continue;
    train::refuse(views_[member.parameter].storage(), refused);
  }
}

void GradientBuckets::assign_gradients(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const std::size_t parameter = bucket.members[i].parameter;
    at::Tensor& gradient = parameters_[parameter].mutable_grad();
    if (gradient.defined() || is_sparse(parameter) || !is_present(bucket, i)) continue;
    gradient = views_[parameter];
  }
}

bool GradientBuckets::is_present(const Bucket& bucket, std::size_t member) const {
  return flags_of(bucket)[static_cast<std::int64_t>(member)].item<double>() != 0.0;
}

double GradientBuckets::reduced_activity(const Bucket& bucket) const {
  return flags_of(bucket)[kActive].item<double>();
}

bool GradientBuckets::has_any_counted(const Bucket& bucket) const {
  return flags_of(bucket)[kCounted].item<double>() != 0.0;
}

bool GradientBuckets::has_unequal_digests(const Bucket& bucket) const {
  const at::Tensor flags = digest_in(flags_of(bucket), bucket).ne(0);
  const auto* const bits = flags.const_data_ptr<bool>();
  for (std::int64_t i = 0; i < kDigestBits; ++i) {
    if (bits[i] && bits[kDigestBits + i]) return true;
  }
  return false;
}

void GradientBuckets::clear_gradients() {
  for (const Bucket& bucket : plan_.buckets) clear_gradients(bucket);
}

void GradientBuckets::clear_gradients(const Bucket& bucket) {
  for (const Bucket::Member& member : bucket.members) {
    if (is_in_place(member.parameter)) parameters_[member.parameter].mutable_grad().reset();
  }
}

}  // namespace kolo::train
