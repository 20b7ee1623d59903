// Files of models and of full states; checkpoints that a training run refuses to load or to save.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/safetensors.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "support/errors.hpp"
#include "support/mpi/variants.hpp"
#include "train/training_checkpoints.hpp"

namespace kolo::test::training_checkpoint_test {

const AlsoIn files_in({"uneven"});

TEST_F(CheckpointTest, ModelFiles_AreLoaded) {
  Net saved(55);
  saved.passes[1] = 12;
  const std::string file = (folder_ / "model.pt").string();
  fs::create_directories(folder_);
  barrier();
  if (runtime_.rank() == 0) {
    torch::serialize::OutputArchive archive;
    saved.save(archive);
    archive.save_to(file);
  }
  barrier();
  for (const Shard mode : all_modes()) {
    Training training(cases()[2], mode, 99);
    training.run(0, 2);
    training.optimizer->load(file);
    EXPECT_TRUE(torch::equal(flat_of(*training.net), flat_of(saved)));
    training.run(2, 3);
    expect_equal_on_all_ranks(flat_of(*training.net));
  }
}

TEST_F(CheckpointTest, FullState_IsOneFile) {
  at::Tensor kept;
  for (const Shard mode : all_modes()) {
    Training training(cases()[2], mode);
    training.run(0, 3);
    const int root = runtime_.size() - 1;
    const fs::path file = folder_ / (std::string(name_of(mode)) + ".safetensors");
    training.optimizer->save_full_state(file, root);
    const checkpoints::SafetensorsReader reader(file);
    const auto read = [&](const std::string& name, std::int64_t count) {
      at::Tensor values = torch::empty({count});
      reader.read(name, DType::Float32, 0,
                  {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
      return values;
    };
    EXPECT_EQ(reader.tensors().at("first.weight").shape, (std::vector<std::int64_t>{9, 9}));
    EXPECT_TRUE(
        torch::equal(read("first.weight", 81), training.net->first->weight.detach().flatten()));
    EXPECT_EQ(reader.tensors().count("optimizer.exp_avg.unused"), 0U);
    EXPECT_EQ(reader.tensors().at("optimizer.exp_avg.first.weight").shape,
              (std::vector<std::int64_t>{9, 9}));
    const at::Tensor moments = torch::cat(
        {read("optimizer.exp_avg.first.weight", 81), read("optimizer.exp_avg_sq.second.bias", 9)});
    if (mode == Shard::None) {  // each rank has the whole state
      const auto state_of = [&](const at::Tensor& parameter) -> const AdamWParamState& {
        return static_cast<const AdamWParamState&>(
            *training.inner->state().at(parameter.unsafeGetTensorImpl()));
      };
      kept = torch::cat({state_of(training.net->first->weight).exp_avg().flatten(),
                         state_of(training.net->second->bias).exp_avg_sq()});
    }
    expect_alike(moments, kept);
    Training other(cases()[2], mode, 99);
    other.optimizer->load(file);
    EXPECT_TRUE(torch::equal(flat_of(*other.net), flat_of(*training.net)));
    EXPECT_THROW(training.optimizer->save_full_state(folder_ / "x" / "y" / "none" / "\0", 77),
                 InvalidArgument);
  }
}

TEST_F(CheckpointTest, CheckpointThatDoesNotFit_IsRefusedAndChangesNothing) {
  const OptimizerCase adamw = cases()[2];
  Training saved(adamw, Shard::Optimizer);
  saved.run(0, 2);
  saved.optimizer->save(folder_);

  const auto expect_refusal = [&](Training& training, const LoadOptions& options,
                                  const std::string& text) {
    const at::Tensor before = flat_of(*training.net).clone();
    const std::string error =
        text_thrown_by<InvalidArgument>([&] { training.optimizer->load(folder_, options); });
    expect_contains(error, text);
    EXPECT_TRUE(torch::equal(flat_of(*training.net), before));
  };
  Training other(cases()[0], Shard::Optimizer, 99);
  expect_refusal(other, {}, "AdamW");
  other.optimizer->load(folder_, {.optimizer_state = false});
  EXPECT_TRUE(torch::equal(flat_of(*other.net), flat_of(*saved.net)));

  Training wider(adamw, Shard::Optimizer, 99);
  wider.optimizer.reset();
  wider.net->passes = wider.net->register_buffer("more", torch::zeros({3}));
  DistributedOptimizer with_more(*wider.inner, *wider.net, with(Shard::Gradients));
  expect_contains(text_thrown_by<InvalidArgument>([&] { with_more.load(folder_); }),
                  "has no 'model.more'");
  const Loaded loaded = with_more.load(folder_, {.strict = false});
  EXPECT_EQ(loaded.steps, 2);
  EXPECT_TRUE(torch::equal(wider.net->first->weight, saved.net->first->weight));

  GradScaler scaler;
  Training same(adamw, Shard::Gradients, 99);
  expect_refusal(same, {.scaler = &scaler}, "no GradScaler's state");
  expect_contains(
      text_thrown_by<InvalidArgument>([&] { same.optimizer->load(folder_ / "nowhere"); }),
      "nowhere");

  // Flips one bit of one file.
  barrier();
  const fs::path shard = loaded.path / "rank-0000.safetensors";
  if (runtime_.rank() == 0) {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-3, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-3, std::ios::end);
    file.put(byte);
  }
  barrier();
  expect_refusal(same, {}, "rank-0000.safetensors");
  same.run(0, 1);
}

}  // namespace kolo::test::training_checkpoint_test
