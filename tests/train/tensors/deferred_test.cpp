// kolo::deferred: constructing a model once per node gives what every rank would have constructed.
#include "kolo/torch/deferred.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <malloc.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "support/mpi/variants.hpp"
#include "support/system/file_size_limit.hpp"
#include "train/sharding.hpp"
#include "train/tensors/deferred.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::deferred_test {

const AlsoIn also_in({"uneven", "nodes"});

constexpr std::int64_t kWidth = 160;  // weights of 100 KiB, above the threshold for own memory

/// Layers with all kinds of initialisers, tied weights, buffers, and tensors that are neither.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = kWidth) {
    input = register_module("input", torch::nn::Linear(width, width));
    convolution = register_module("convolution", torch::nn::Conv1d(1, 3, 5));
    lstm = register_module("lstm", torch::nn::LSTM(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    output = register_module("output", torch::nn::Linear(width, width));
    tied = register_parameter("tied", input->weight);
    frozen = register_parameter("frozen", torch::rand({width, width}), /*requires_grad=*/false);
    own = register_parameter("own", torch::empty({width, width}));
    torch::nn::init::orthogonal_(own);
    const at::Tensor places = torch::arange(width * width, torch::kFloat).view({width, width});
    waves = register_buffer("waves", torch::sin(places / 7));
    mask = torch::rand({width, width}) > 0.5;
    order = torch::randperm(width * width);
    apply([](torch::nn::Module& module) {
      if (auto* const linear = module.as<torch::nn::LinearImpl>()) {
        torch::nn::init::normal_(linear->weight, 0, 0.02);
      }
    });
    lstm->to(torch::kDouble);
    lstm->to(torch::kFloat);
  }

  at::Tensor forward(const at::Tensor& rows) {
    at::Tensor values = norm->forward(input->forward(rows) * mask[5]);
    values = convolution->forward(values.unsqueeze(1)).mean(1);
    values = torch::constant_pad_nd(values, {2, 2}) + waves[3];
    values = std::get<0>(lstm->forward(values.unsqueeze(0))).squeeze(0);
    values = torch::linear(output->forward(values), tied);
    return values.matmul(own + frozen).index_select(1, order.remainder(kWidth));
  }

  torch::nn::Linear input{nullptr};
  torch::nn::Conv1d convolution{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear output{nullptr};
  at::Tensor tied, frozen, own, waves, mask, order;
};
TORCH_MODULE(Net);

at::Tensor random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

void expect_same(const Net& model, const Net& expected, const char* what) {
  const auto all = [](const Net& net) {
    auto named = net->named_parameters().pairs();
    for (const auto& item : net->named_buffers()) named.emplace_back(item.key(), item.value());
    named.emplace_back("mask", net->mask);
    named.emplace_back("order", net->order);
    return named;
  };
  const auto got = all(model);
  const auto wanted = all(expected);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, wanted[i].first);
    EXPECT_TRUE(torch::equal(got[i].second, wanted[i].second)) << what << ": " << got[i].first;
  }
}

at::Tensor trained(Net& model, DistributedOptimizer& optimizer) {
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->forward(batch_rows(step, 4 * Runtime::current().rank(), 4, kWidth, torch::kFloat))
        .pow(2)
        .mean()
        .backward();
    optimizer.step();
  }
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : model->parameters())
    all.push_back(parameter.detach().flatten());
  const at::Tensor values = torch::cat(all);
  barrier();
  return values;
}

class DeferredTest : public TrainingTest {
 protected:
  bool keeps_parameters() const { return runtime_.local_rank() == 0; }
  int first_of_node() const { return rank() - runtime_.local_rank(); }
  std::vector<Shard> modes() const {
    std::vector<Shard> modes{Shard::None, Shard::Optimizer, Shard::Gradients};
    if (Config::from_environment().shared_memory || size() == 1) modes.push_back(Shard::Full);
    return modes;
  }
  static DistributedOptimizer::Options options(Shard shard) {
    DistributedOptimizer::Options options = with(shard);
    const bool has_nodes = Config::from_environment().fake_nodes > 0;
    if (shard == Shard::Full && has_nodes) options.shard_scope = ShardScope::Node;
    return options;
  }
};

TEST_F(DeferredTest, Models_AreThoseOfAnOrdinaryConstruction) {
  for (const Shard shard : modes()) {
    torch::manual_seed(7);
    Net expected;
    const at::Tensor state = random_state();
    torch::manual_seed(7);
    Net model = deferred<Net>();
    EXPECT_TRUE(torch::equal(random_state(), state));
    EXPECT_TRUE(model->tied.is_same(model->input->weight));
    EXPECT_TRUE(is_deferred(*model));
    EXPECT_FALSE(is_deferred(*expected));
    torch::optim::AdamW inner(distinct_parameters(*model), 1e-3);
    DistributedOptimizer optimizer(inner, *model, options(shard));
    EXPECT_FALSE(is_deferred(*model));
    expect_same(model, expected, name_of(shard).data());
    barrier();
    torch::optim::AdamW expected_inner(distinct_parameters(*expected), 1e-3);
    DistributedOptimizer expected_optimizer(expected_inner, *expected, options(shard));
    EXPECT_TRUE(torch::equal(trained(model, optimizer), trained(expected, expected_optimizer)))
        << name_of(shard);
  }
}

/// Equal to ordinary construction, with the first rank's values where ranks would differ.
TEST_F(DeferredTest, RanksWithOtherSeeds_GetTheFirstRanksValues) {
  for (const Shard shard : modes()) {
    const int source = shard == Shard::Full ? first_of_node() : 0;
    torch::manual_seed(std::uint64_t(source));
    const Net of_source;
    torch::manual_seed(std::uint64_t(0));
    const Net of_first_rank;
    torch::manual_seed(std::uint64_t(rank()));
    const Net own;
    const at::Tensor state = random_state();
    torch::manual_seed(std::uint64_t(rank()));
    auto model = deferred<NetImpl>();
    EXPECT_TRUE(torch::equal(random_state(), state));
    torch::optim::SGD inner(distinct_parameters(*model), 1e-3);
    const DistributedOptimizer optimizer(inner, *model, options(shard));
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value(), of_source->named_parameters()[item.key()]))
          << name_of(shard) << " " << item.key();
    }
    EXPECT_TRUE(torch::equal(model->waves, of_first_rank->waves));
    EXPECT_TRUE(torch::equal(model->mask, of_first_rank->mask));
    EXPECT_TRUE(torch::equal(model->order, of_first_rank->order));
    barrier();
  }
}

TEST_F(DeferredTest, UseBeforeWrapping_Throws) {
  auto model = deferred<Net>();
  const at::Tensor rows = torch::ones({2, kWidth});
  const std::string text = "' has no elements on this rank";
  if (keeps_parameters()) {
    model->forward(rows);
    EXPECT_TRUE(model->input->weight.isfinite().all().item<bool>());
  } else {
    expect_contains(text_thrown_by<c10::Error>([&] { model->forward(rows); }), text);
    expect_contains(text_thrown_by<c10::Error>([&] { model->to(torch::kDouble); }), text);
    expect_contains(text_thrown_by<c10::Error>([&] { model->own.data().zero_(); }),
                    "parameter 'own" + text);
  }
  if (runtime_.local_size() == 1) GTEST_SKIP() << "the rest: a rank alone has all elements";
  expect_refused([&] { broadcast_parameters(*model, 0); }, "kolo::deferred model");
}

/// Parameters that sharding cannot move: two in one storage, and one that is not contiguous.
struct OddNet : torch::nn::Module {
  OddNet() {
    const at::Tensor flat = torch::rand({2, kWidth, kWidth});
    first = register_parameter("first", flat[0], /*requires_grad=*/false);
    second = register_parameter("second", flat.narrow(0, 0, 2), /*requires_grad=*/false);
    columns = register_parameter("columns", torch::rand({kWidth, kWidth}).t(), false);
    weight = register_parameter("weight", torch::rand({kWidth}));
  }
  at::Tensor first, second, columns, weight;
};

TEST_F(DeferredTest, ParametersThatCannotBeMoved_AreThoseOfTheFirstRank) {
  for (const Shard shard : modes()) {
    torch::manual_seed(0);
    const OddNet expected;
    torch::manual_seed(std::uint64_t(rank()));
    const auto model = deferred<OddNet>();
    torch::optim::SGD inner(Parameters{model->weight}, 1e-3);
    const DistributedOptimizer optimizer(inner, *model, options(shard));
    if (shard != Shard::Full || first_of_node() == 0) {
      EXPECT_TRUE(torch::equal(model->weight, expected.weight)) << name_of(shard);
    }
    EXPECT_TRUE(torch::equal(model->first, expected.first)) << name_of(shard);
    EXPECT_TRUE(torch::equal(model->second, expected.second)) << name_of(shard);
    EXPECT_TRUE(torch::equal(model->columns, expected.columns)) << name_of(shard);
    EXPECT_TRUE(model->first.storage().is_alias_of(model->second.storage()));
  }
}

TEST_F(DeferredTest, SetsWithoutTheFirstRank_AreRefused) {
  if (runtime_.local_size() < 3 || runtime_.local_size() < size()) {
    GTEST_SKIP() << "needs three ranks of one node";
  }
  auto model = deferred<Net>();
  ProcessSet& rest = runtime_.add_process_set({1, 2});
  for (const Shard shard : modes()) {
    if (rank() != 1 && rank() != 2) continue;
    DistributedOptimizer::Options own = options(shard);
    own.process_set = &rest;
    torch::optim::SGD inner(distinct_parameters(*model), 1e-3);
    expect_contains(
        text_thrown_by<InvalidArgument>([&] { DistributedOptimizer(inner, *model, own); }),
        "a set with the first rank of the node");
  }
  barrier();
}

/// Throws, makes another tensor, or draws other random numbers on the last rank.
struct UnequalNet : torch::nn::Module {
  UnequalNet(const std::string& what, bool is_last) {
    weight = register_parameter("weight", torch::randn({kWidth, kWidth}));
    if (what == "throws" && is_last) throw std::range_error("no such layer");
    if (what == "makes" && is_last) extra = torch::ones({3});
    if (what == "draws" && is_last) torch::rand({1});
  }
  at::Tensor weight, extra;
};

TEST_F(DeferredTest, ConstructorsThatDiffer_AreErrorsOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank differs from nobody";
  const auto text_of = [&]<class Expected>(const char* what, Expected) {
    torch::manual_seed(3);
    return text_thrown_by<Expected>([&] { deferred<UnequalNet>(what, is_last()); });
  };
  if (is_last()) {
    EXPECT_THROW(deferred<UnequalNet>("throws", true), std::range_error);
  } else {
    expect_contains(text_of("throws", InvalidArgument("")), "no such layer");
  }
  expect_contains(text_of("makes", MismatchError("")), "number of other tensors");
  expect_contains(text_of("draws", InvalidArgument("")), "has drawn other random numbers");
}

/// This process's memory in bytes, with shared pages divided by the number of mappings. Without
/// pages of files: a library's count for less whenever another process that has it starts.
double proportional_memory() {
  std::ifstream file("/proc/self/smaps_rollup");
  double bytes = -1;
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if ((word == "Pss_Anon:" || word == "Pss_Shmem:") && file >> kilobytes) {
      bytes = std::max(bytes, 0.0) + kilobytes * 1024;
    }
  }
  return bytes;
}

struct LargeNet : torch::nn::Module {
  LargeNet() {
    for (int i = 0; i < 8; ++i) {
      const std::string name = "layer" + std::to_string(i);
      register_module(name, torch::nn::Linear(1448, 1448));  // 8 MiB
    }
    at_the_end = proportional_memory();
  }
  double at_the_end;
};

TEST_F(DeferredTest, OnlyTheFirstRankHasThemInMemory) {
  ::malloc_trim(0);  // earlier tests leave free memory, which would be used again
  const double before = proportional_memory();
  if (before < 0) GTEST_SKIP() << "no such counts in /proc/self/smaps_rollup";
  const auto model = deferred<LargeNet>();
  const double whole = 8.0 * 1448 * 1448 * 4;
  if (keeps_parameters()) {
    EXPECT_GT(model->at_the_end - before, 0.5 * whole);  // freed memory may be reused
  } else {
    EXPECT_LT(model->at_the_end - before, 0.25 * whole);
    EXPECT_LT(proportional_memory() - before, 0.25 * whole);
  }
}

// As with `ulimit -f`: what cannot be mapped is memory as usual, and nobody gets SIGXFSZ.
TEST_F(DeferredTest, LimitOfFiles_LeavesUsualMemory) {
  using train::ConstructionMemory;
  const auto memory = std::make_shared<ConstructionMemory>(ConstructionMemory::Kind::Scratch);
  const FileSizeLimit limit(4096);
  const ConstructionMemory::Scope scope(memory);
  const at::Tensor numbers = torch::arange(1 << 18);
  EXPECT_EQ(numbers[3].item<int>(), 3);
  EXPECT_EQ(numbers[1 << 17].item<int>(), 1 << 17);
}

}  // namespace kolo::test::deferred_test
