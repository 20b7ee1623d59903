#include "programs/random_variant.hpp"

#include <algorithm>

#include "programs/random_operation.hpp"

namespace kolo::programs {
namespace {

using simulator::Random;

/// Changes one field of `variant` on which the ranks must agree. False if the field drawn does not
/// apply.
bool change_a_field(const Program& program, Operation& variant, Random& random) {
  const bool has_tensors = !variant.tensors.empty();
  const bool is_reduced = is_reduction(variant);
  const bool has_place = variant.buffer >= 0;
  switch (random.between(0, 11)) {
    case 0: {
      if (!has_tensors || has_place) return false;
      Tensor& tensor = variant.tensors.back();
      const DType before = tensor.dtype;
      tensor.dtype = random_dtype(variant, random);
      return tensor.dtype != before;
    }
    case 1:
      if (!has_tensors || has_place) return false;
      variant.tensors.back().shape.push_back(random.between(0, 3));
      return true;
    case 2:
      if (!has_tensors || has_place || variant.tensors.back().shape.empty()) return false;
      ++variant.tensors.back().shape.back();
      return true;
    case 3:
      if (!has_tensors || has_place || variant.collective == Collective::AllToAll) return false;
      variant.tensors.push_back(variant.tensors.back());
      if (variant.collective == Collective::AllGather) variant.rows.push_back(variant.rows.back());
      return true;
    case 4:
      if (!is_reduced || variant.op == ReduceOp::Custom) return false;
      variant.op = variant.op == ReduceOp::Max ? ReduceOp::Min : ReduceOp::Max;
      return true;
    case 5:
      if (!is_reduced || variant.op != ReduceOp::Custom) return false;
      variant.custom = variant.custom == "added" ? "greatest" : "added";
      return true;
    case 6:
      if (!is_reduced || variant.op == ReduceOp::Custom) return false;
      variant.prescale += 0.125;
      return true;
    case 7:
      if (!is_reduced || variant.op == ReduceOp::Custom) return false;
      variant.postscale += 0.125;
      return true;
    case 8:
      if (!is_reduced) return false;
      variant.compression = variant.compression == "bf16" ? "fp16" : "bf16";
      return true;
    case 9:
      if (!is_reduced) return false;
      variant.join_divisor =
          variant.join_divisor == JoinDivisor::Active ? JoinDivisor::World : JoinDivisor::Active;
      return true;
    case 10:
      if (variant.collective == Collective::Broadcast) {
        const int before = variant.root;
        variant.root = random.pick(program.members(variant));
        return variant.root != before;
      }
      if (!has_place) return false;
      variant.offset_bytes += variant.tensors[0].count() == 0 ? 8u : 0u;
      return variant.tensors[0].count() == 0;
    default: {
      if (variant.name.empty() || has_place) return false;
      const std::string name = variant.name;
      const Collective other =
          variant.collective == Collective::Barrier ? Collective::Broadcast : Collective::Barrier;
      variant = random_operation(program, variant.set, other, random);
      variant.name = name;
      return true;
    }
  }
}

bool set_mistake(Operation& variant, Mistake mistake, bool fits) {
  variant.mistake = mistake;
  return fits;
}

/// Makes the arguments invalid. False if the mistake drawn does not apply.
bool make_a_mistake(const Program& program, Operation& variant, Random& random) {
  const bool is_reduced = is_reduction(variant);
  const bool has_place = variant.buffer >= 0;
  const bool has_elements = std::any_of(variant.tensors.begin(), variant.tensors.end(),
                                        [](const Tensor& tensor) { return tensor.count() > 0; });
  const bool has_memory = has_elements && !has_place && !takes_rows(variant);
  switch (random.between(0, 11)) {
    case 0:
      return set_mistake(variant, Mistake::OutputShape,
                         is_reduced && !has_place && !variant.tensors.empty());
    case 1:
      return set_mistake(variant, Mistake::OutputDType,
                         is_reduced && !has_place && !variant.tensors.empty());
    case 2: return set_mistake(variant, Mistake::NoMemory, has_memory);
    case 3:
      return set_mistake(variant, Mistake::NoOutput,
                         has_memory && is_reduced && variant.collective == Collective::AllReduce);
    case 4:
      return set_mistake(variant, Mistake::CudaMemory, !variant.tensors.empty() && !has_place);
    case 5: return set_mistake(variant, Mistake::Scalar, takes_rows(variant));
    case 6: {
      if (variant.collective != Collective::Broadcast) return false;
      variant.root = program.size;  // no such rank
      for (int rank = 0; rank < program.size; ++rank) {
        if (!is_among(rank, program.members(variant)) && random.one_in(2)) variant.root = rank;
      }
      return true;
    }
    case 7:
      if (variant.collective != Collective::AllToAll) return false;
      variant.equal_splits = false;
      variant.given_splits = variant.split[0];
      variant.given_splits->push_back(0);
      return true;
    case 8:
      if (variant.collective != Collective::AllToAll) return false;
      variant.equal_splits = false;
      variant.given_splits = std::vector<std::int64_t>(variant.split.size(), 0);
      variant.given_splits->front() = random.one_in(2) ? -1 : 1'000;
      return true;
    case 9:
      if (!is_reduced || variant.op != ReduceOp::Custom) return false;
      variant.custom = "unheard-of";
      return true;
    case 10: {
      const bool has_integers =
          std::any_of(variant.tensors.begin(), variant.tensors.end(),
                      [](const Tensor& tensor) { return !is_floating(tensor.dtype); });
      variant.op = ReduceOp::Adasum;
      return variant.collective == Collective::ReduceScatter || (is_reduced && has_integers);
    }
    default:
      if (!is_reduced) return false;
      variant.compression = "unheard-of";
      return true;
  }
}

}  // namespace

void make_disagree(const Program& program, Operation& operation, Random& random) {
  const bool can_differ = operation.submitters.size() > 1;
  for (int attempt = 0; attempt < 10; ++attempt) {
    auto variant = std::make_shared<Operation>(operation);
    const bool differs = can_differ && !random.one_in(3);
    if (!(differs ? change_a_field(program, *variant, random)
                  : make_a_mistake(program, *variant, random))) {
      continue;
    }
    variant->id = operation.id;
    operation.outlier = random.pick(operation.submitters);
    operation.variant = std::move(variant);
    operation.error = differs ? ErrorKind::Mismatch : ErrorKind::InvalidArgument;
    return;
  }
}

}  // namespace kolo::programs
