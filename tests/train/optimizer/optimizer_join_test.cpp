// Optimizers of process sets, and after a join().
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "support/mpi/variants.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::optimizer_join_test {

const AlsoIn also_in({"uneven", "messages"});

class OptimizerJoinTest : public TrainingTest {};

constexpr std::int64_t kElements = 37;  // if sharded, each of four ranks owns some

at::Tensor make_weight() {
  return torch::ones({kElements}, torch::dtype(torch::kFloat64).requires_grad(true));
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const at::Tensor& weight) {
  return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{weight},
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// A weight that the ranks of a set train, with gradients of `factor` times the rank.
class TrainedBySet {
 public:
  TrainedBySet(ProcessSet& set, double factor) : set_(set), factor_(factor) {
    if (!set_.included()) return;
    inner_ = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{weight_}, 1.0);
    optimizer_.emplace(*inner_, DistributedOptimizer::NamedParameters{{"weight", weight_}},
                       DistributedOptimizerOptions{.process_set = &set_});
  }

  void backward(int rank) {
    if (!optimizer_) return;
    optimizer_->zero_grad();
    (weight_ * (factor_ * rank)).sum().backward();
  }
  void step() {
    if (optimizer_) optimizer_->step();
  }
  void expect_trained(int steps) {
    if (!optimizer_) return;
    double sum = 0;
    for (const int r : set_.ranks()) sum += r;
    EXPECT_TRUE(torch::allclose(
        weight_,
        torch::full({kElements}, 1 - steps * factor_ * sum / set_.size(), torch::kFloat64)))
        << weight_;
    EXPECT_TRUE(std::count(set_.ranks().begin(), set_.ranks().end(), optimizer_->join()) == 1);
  }

 private:
  ProcessSet& set_;
  double factor_;
  at::Tensor weight_ = make_weight();
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::optional<DistributedOptimizer> optimizer_;
};

TEST_F(OptimizerJoinTest, OptimizersOfOverlappingSets_DoNotWaitForOneAnother) {
  if (size() < 3) GTEST_SKIP() << "sets of fewer than three ranks do not overlap in part";
  // One set without the last rank, one without the first; the ranks between are in both.
  std::vector<int> ranks;
  for (int r = 0; r + 1 < size(); ++r) ranks.push_back(r);
  ProcessSet& low = runtime_.add_process_set(ranks);
  for (int& r : ranks) ++r;
  ProcessSet& high = runtime_.add_process_set(ranks);
  TrainedBySet a(low, 1.0);
  TrainedBySet b(high, 10.0);
  constexpr int kSteps = 20;
  for (int step = 0; step < kSteps; ++step) {
    a.backward(rank());
    b.backward(rank());
    TrainedBySet& first = step % 2 == 0 ? a : b;
    TrainedBySet& second = step % 2 == 0 ? b : a;
    first.step();
    second.step();
  }
  a.expect_trained(kSteps);
  b.expect_trained(kSteps);
}

TEST_F(OptimizerJoinTest, AnOptimizerMadeAfterAJoin_HasOperationsOfItsOwn) {
  const at::Tensor early = make_weight();
  const at::Tensor late = make_weight();
  torch::optim::SGD early_inner({early}, 1.0);
  torch::optim::SGD late_inner({late}, 1.0);
  DistributedOptimizer first(early_inner, {{"weight", early}});
  first.join();
  DistributedOptimizer second(late_inner, {{"weight", late}});
  for (int step = 0; step < 3; ++step) {
    first.zero_grad();
    second.zero_grad();
    (early * (1.0 + rank())).sum().backward();  // both are in flight
    (late * (2.0 * rank())).sum().backward();
    second.step();
    first.step();
  }
  EXPECT_TRUE(torch::allclose(early, 1 - 3 * torch::full_like(early, (size() + 1) / 2.0)));
  EXPECT_TRUE(torch::allclose(late, 1 - 3 * torch::full_like(late, size() - 1.0)));
}

TEST_F(OptimizerJoinTest, AdasumOnASet_CombinesItsGradientsOnly) {
  std::vector<int> ranks;
  for (int r = 0; r < size(); r += 2) ranks.push_back(r);
  ProcessSet& set = runtime_.add_process_set(ranks);
  if (set.included()) {
    const at::Tensor alike = make_weight();
    const at::Tensor apart = make_weight();
    torch::optim::SGD inner({alike, apart}, 1.0);
    DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{},
                                   {.op = ReduceOp::Adasum, .process_set = &set});
    const at::Tensor ramp = torch::arange(kElements, torch::kFloat64);
    const at::Tensor own = torch::zeros({kElements}, torch::kFloat64);
    own[rank()] = 3.0 + rank();
    at::Tensor sum = torch::zeros({kElements}, torch::kFloat64);
    for (const int r : ranks) sum[r] = 3.0 + r;
    (alike * ramp + apart * own).sum().backward();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(alike, 1 - ramp)) << alike;
    EXPECT_TRUE(torch::allclose(apart, 1 - sum)) << apart;
  }
  barrier();  // the world still works
}

TEST_F(OptimizerJoinTest, JoinAndStateOnASet_LeaveTheOthersAlone) {
  std::vector<int> ranks;
  for (int r = 0; r < size(); r += 2) ranks.push_back(r);
  ProcessSet& set = runtime_.add_process_set(ranks);
  const at::Tensor weight = make_weight();
  const auto inner = make_inner(weight);
  if (set.included()) {
    weight.detach().fill_(rank());
    const int root = set.ranks().back();
    broadcast_parameters({{"weight", weight}}, root, &set);
    EXPECT_TRUE(torch::equal(weight.detach(), torch::full({kElements}, root, torch::kFloat64)));
    DistributedOptimizer optimizer(*inner, {{"weight", weight}}, {.process_set = &set});
    for (int step = 0; step < 1 + set.rank(); ++step) {  // the set's last rank has the most
      optimizer.zero_grad();
      weight.sum().backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.join(), root);
    inner->param_groups()[0].options().set_lr(0.01 * (rank() + 1));
    broadcast_optimizer_state(*inner, root, &set);
    EXPECT_DOUBLE_EQ(inner->param_groups()[0].options().get_lr(), 0.01 * (root + 1));
    const auto& state = static_cast<const torch::optim::SGDParamState&>(
        *inner->state().at(weight.unsafeGetTensorImpl()));
    const OperationOptions on_set{.process_set = &set};
    EXPECT_TRUE(
        torch::equal(state.momentum_buffer(), broadcast(state.momentum_buffer(), root, on_set)));
    EXPECT_TRUE(torch::equal(weight.detach(), broadcast(weight.detach(), root, on_set)));
  } else {
    EXPECT_THROW(broadcast_parameters({{"weight", weight}}, 0, &set), InvalidArgument);
    EXPECT_THROW(broadcast_optimizer_state(*inner, 0, &set), InvalidArgument);
    EXPECT_THROW(DistributedOptimizer(*inner, {{"weight", weight}}, {.process_set = &set}),
                 InvalidArgument);
    EXPECT_TRUE(torch::equal(weight.detach(), torch::ones({kElements}, torch::kFloat64)));
  }
  barrier();  // the world still works
}

}  // namespace kolo::test::optimizer_join_test
