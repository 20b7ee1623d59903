#include "programs/random_operation.hpp"

#include <algorithm>
#include <numeric>

namespace kolo::programs {

namespace {

using simulator::Random;
using Shape = std::vector<std::int64_t>;

constexpr int kSlots = 4;  // in a shared buffer
constexpr std::int64_t kMaxBytes = 100 << 10;

Collective random_collective(Random& random) {
  using enum Collective;
  return random.pick(std::vector<Collective>{AllReduce, AllReduce, AllReduce, AllReduce, AllReduce,
                                             AllReduce, ReduceScatter, ReduceScatter, ReduceScatter,
                                             Broadcast, Broadcast, Broadcast, AllGather, AllGather,
                                             AllGather, AllToAll, AllToAll, Barrier});
}

/// More elements than fit in a segment or in staging memory, but not thousands of messages.
std::int64_t large_count(const Program& program, DType dtype, Random& random) {
  const auto segment = static_cast<std::int64_t>(program.config.tuning.segment_bytes);
  const auto staging = static_cast<std::int64_t>(program.config.tuning.staging_bytes);
  const std::int64_t wanted =
      random.one_in(2) ? segment * random.between(1, 5) : staging * random.between(1, 2);
  const std::int64_t bytes = std::min({wanted, segment * 80, kMaxBytes});
  return bytes / static_cast<std::int64_t>(size_of(dtype)) + random.between(-1, 1);
}

Shape random_shape(const Program& program, DType dtype, bool can_be_scalar, Random& random) {
  switch (random.between(0, 11)) {
    case 0: return can_be_scalar ? Shape{} : Shape{1};
    case 1: return {0};
    case 2: return {1};
    case 3: return {random.between(0, 5), random.between(0, 4)};
    case 4: return {random.between(1, 4), random.between(1, 5), random.between(1, 3)};
    case 5: return {random.between(100, 700)};
    case 6: return random.one_in(3) ? Shape{large_count(program, dtype, random)} : Shape{7};
    default: return {random.between(2, 40)};
  }
}

double random_scale(const Operation& operation, Random& random) {
  if (!random.one_in(3) || operation.op == ReduceOp::Custom) return 1.0;
  return random.pick(std::vector<double>{0.5, 2.0, 0.25, -1.5});
}

void choose_scales(Operation& operation, Random& random) {
  operation.prescale = random_scale(operation, random);
  operation.postscale = random_scale(operation, random);
  // An average that overflows its type has no defined value.
  const bool has_integers =
      std::any_of(operation.tensors.begin(), operation.tensors.end(),
                  [](const Tensor& tensor) { return !is_floating(tensor.dtype); });
  if (operation.op == ReduceOp::Average && has_integers) {
    operation.prescale = std::min(1.0, std::abs(operation.prescale));
    operation.postscale = std::min(1.0, std::abs(operation.postscale));
  }
}

void choose_tensors(const Program& program, Operation& operation, Random& random) {
  const bool can_group =
      operation.collective != Collective::AllToAll && operation.collective != Collective::Barrier;
  int count = operation.collective == Collective::Barrier ? 0 : 1;
  if (can_group && random.one_in(5)) count = random.between(2, 4);
  for (int i = 0; i < count; ++i) {
    Tensor tensor;
    tensor.dtype = random_dtype(operation, random);
    const bool can_be_scalar = operation.collective != Collective::ReduceScatter;
    tensor.shape = random_shape(program, tensor.dtype, can_be_scalar, random);
    if (takes_rows(operation) && random.one_in(3)) tensor.shape = {};
    operation.tensors.push_back(tensor);
  }
}

}  // namespace

DType random_dtype(const Operation& operation, Random& random) {
  for (;;) {
    const auto dtype = static_cast<DType>(random.between(0, static_cast<int>(DType::Bool)));
    const bool takes_bool = !is_reduction(operation) || operation.op == ReduceOp::Min ||
                            operation.op == ReduceOp::Max || operation.op == ReduceOp::Custom;
    if (operation.op == ReduceOp::Adasum && !is_floating(dtype)) continue;
    if (dtype != DType::Bool || takes_bool) return dtype;
  }
}

void choose_reduction(Operation& operation, Random& random) {
  using enum ReduceOp;
  operation.op = random.pick(
      std::vector<ReduceOp>{Average, Average, Sum, Sum, Sum, Min, Max, Product, Custom});
  if (operation.collective == Collective::AllReduce && random.one_in(12)) operation.op = Adasum;
  operation.custom.clear();
  if (operation.op == Custom) operation.custom = random.one_in(2) ? "added" : "greatest";
}

void choose_rows(const Program& program, Operation& operation, Random& random) {
  if (!takes_rows(operation)) return;
  const std::size_t size = program.members(operation).size();
  const auto random_rows = [&] {
    Shape rows(size);
    const int most = random.one_in(6) ? 0 : random.between(1, 6);
    for (std::int64_t& of_member : rows) of_member = random.between(0, most);
    return rows;
  };
  operation.rows.clear();
  operation.split.clear();
  if (operation.collective == Collective::AllGather) {
    for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
      operation.rows.push_back(random_rows());
    }
    return;
  }
  operation.equal_splits = random.one_in(4);
  for (std::size_t member = 0; member < size; ++member) {
    operation.split.push_back(operation.equal_splits ? Shape(size, random.between(0, 3))
                                                     : random_rows());
  }
}

Operation random_operation(const Program& program, int set, Collective collective, Random& random) {
  Operation operation;
  operation.collective = collective;
  operation.set = set;
  operation.submitters = program.members(operation);
  if (is_reduction(operation)) choose_reduction(operation, random);
  choose_tensors(program, operation, random);
  if (is_reduction(operation)) {
    choose_scales(operation, random);
    operation.join_divisor = random.one_in(4) ? JoinDivisor::Active : JoinDivisor::World;
    operation.compression =
        random.pick(std::vector<std::string>{"none", "none", "none", "fp16", "bf16"});
    operation.in_place = random.one_in(2);
  }
  operation.root = random.pick(operation.submitters);
  choose_rows(program, operation, random);
  return operation;
}

Operation random_operation(const Program& program, int set, Random& random) {
  return random_operation(program, set, random_collective(random), random);
}

Operation random_operation_in_buffer(const Program& program, int set, int buffer,
                                     std::size_t size_bytes, Random& random) {
  Operation operation;
  operation.set = set;
  operation.submitters = program.members(operation);
  choose_reduction(operation, random);
  const DType dtype = random_dtype(operation, random);
  operation.buffer = buffer;
  operation.slot = random.between(0, kSlots - 1);
  const std::size_t slot_bytes = size_bytes / kSlots / 8 * 8;
  const std::size_t skipped = 8 * static_cast<std::size_t>(random.between(0, 3));
  operation.offset_bytes = static_cast<std::size_t>(operation.slot) * slot_bytes + skipped;
  const auto room = static_cast<std::int64_t>((slot_bytes - skipped) / size_of(dtype));
  operation.tensors = {
      {dtype, {random.one_in(4) ? room : random.below(std::min<std::int64_t>(room + 1, 50))}}};
  choose_scales(operation, random);
  operation.compression = random.one_in(8) ? "fp16" : "none";
  operation.in_place = true;
  operation.root = operation.submitters[0];
  return operation;
}

namespace {

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
