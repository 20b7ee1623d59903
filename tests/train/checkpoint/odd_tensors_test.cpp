// Checkpoints of odd tensors and of ranks that differ: what save() writes, load() takes.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/safetensors.hpp"
#include "kolo/error.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "support/mpi/variants.hpp"
#include "train/training_checkpoints.hpp"

namespace kolo::test::odd_tensors_test {

namespace fs = std::filesystem;
using training_checkpoint_test::CheckpointTest;
using training_checkpoint_test::OptimizerCloneableParamState;

const AlsoIn also_in({"uneven", "messages"});

class OddTensorsTest : public CheckpointTest {
 protected:
  /// Writes float32 tensors on rank 0 to a file that all ranks see.
  fs::path write_file(const std::string& name, const std::map<std::string, at::Tensor>& tensors) {
    barrier();
    if (runtime_.rank() == 0) {
      std::vector<checkpoints::SafetensorsTensor> entries;
      for (const auto& [key, tensor] : tensors) {
        entries.push_back({key, DType::Float32, tensor.sizes().vec()});
      }
      checkpoints::SafetensorsWriter writer(folder_ / name, entries);
      for (const auto& [key, tensor] : tensors) {
        const at::Tensor values = tensor.contiguous();
        writer.append(values.data_ptr(), values.nbytes());
      }
      writer.close();
    }
    barrier();
    return folder_ / name;
  }
  /// Writes a file with these bytes on rank 0.
  fs::path write_bytes(const std::string& name, const std::string& bytes) {
    barrier();
    fs::create_directories(folder_);
    if (runtime_.rank() == 0) std::ofstream(folder_ / name, std::ios::binary) << bytes;
    barrier();
    return folder_ / name;
  }
};

/// A model with these parameters, all with gradients.
struct Parts : torch::nn::Module {
  explicit Parts(const std::map<std::string, at::Tensor>& tensors) {
    for (const auto& [name, tensor] : tensors) register_parameter(name, tensor.clone());
  }
  at::Tensor part(const std::string& name) { return named_parameters()[name]; }
};

// With local SGD ranks may train different parts of a model. `a` has state on all ranks, `head` on
// the last rank that trains it.
TEST_F(OddTensorsTest, StateOfSomeRanks_IsSavedWhole) {
  using torch::optim::SGD;
  const std::map<std::string, at::Tensor> parts{
      {"a", torch::ones({7})}, {"first", torch::ones({529})}, {"last", torch::ones({534})}};
  DistributedOptimizer::Options options = with(Shard::None);
  options.local_sgd = {.period = 100};
  const auto sgd = [](const Parts& of) {
    return SGD(of.parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
  };
  Parts model(parts);
  SGD inner = sgd(model);
  DistributedOptimizer optimizer(inner, model, options);
  const int own = runtime_.rank() == 0 ? 0 : 1;
  const double slope = runtime_.rank() + 1;
  optimizer.zero_grad();
  (model.part("a") * slope).sum().backward();
  (model.part(own == 0 ? "first" : "last") * slope).sum().backward();
  optimizer.step();
  optimizer.save(folder_);
  optimizer.save_full_state(folder_ / "all.safetensors", 0);
  const checkpoints::SafetensorsReader file(folder_ / "all.safetensors");
  for (const char* name : {"first", "last"}) {
    if (runtime_.size() == 1 && std::string(name) == "last") continue;
    const double expected = std::string(name) == "first" ? 1.0 : runtime_.size();
    const std::int64_t count = model.part(name).numel();
    at::Tensor momentum = torch::empty({count});
    file.read("optimizer.momentum_buffer." + std::string(name), DType::Float32, 0,
              {static_cast<std::byte*>(momentum.data_ptr()), momentum.nbytes()});
    EXPECT_TRUE(torch::equal(momentum, torch::full({count}, expected))) << name;
    Parts fresh(parts);
    SGD fresh_inner = sgd(fresh);
    DistributedOptimizer loaded(fresh_inner, fresh, options);
    loaded.load(folder_);
    const auto& state = static_cast<const torch::optim::SGDParamState&>(
        *fresh_inner.state().at(fresh.part(name).unsafeGetTensorImpl()));
    EXPECT_TRUE(torch::equal(state.momentum_buffer(), momentum)) << name;
  }
}

struct WithExpanded : torch::nn::Module {
  explicit WithExpanded(bool is_expanded = true) {
    weight = register_parameter("weight", torch::ones({3}));
    const at::Tensor rows = torch::arange(6, torch::kFloat).view({1, 6}).expand({2, -1});
    mask = register_buffer("mask", is_expanded ? rows : rows.contiguous());
  }
  at::Tensor weight, mask;
};

TEST_F(OddTensorsTest, ExpandedBuffers_AreLoaded) {
  WithExpanded saved;
  torch::optim::SGD inner(saved.parameters(), 0.5);
  DistributedOptimizer optimizer(inner, saved, with(Shard::Optimizer));
  saved.mask.select(0, 0).mul_(2);  // in both rows
  optimizer.save(folder_);
  optimizer.save_full_state(folder_ / "all.safetensors");
  WithExpanded fresh;
  torch::optim::SGD fresh_inner(fresh.parameters(), 0.5);
  DistributedOptimizer loaded(fresh_inner, fresh, with(Shard::Optimizer));
  for (const fs::path& path : {folder_, folder_ / "all.safetensors"}) {
    fresh.mask.select(0, 0).zero_();
    loaded.load(path);
    EXPECT_TRUE(torch::equal(fresh.mask, torch::arange(0, 12, 2).expand({2, 6}))) << path;
    EXPECT_EQ(fresh.mask.stride(0), 0);
  }
  // Rows that differ do not fit into one: nothing has changed then.
  WithExpanded plain(/*is_expanded=*/false);
  plain.weight.data().fill_(7);
  torch::optim::SGD plain_inner(plain.parameters(), 0.5);
  DistributedOptimizer other(plain_inner, plain, with(Shard::None));
  other.save(folder_ / "plain");
  plain.mask[1].fill_(5);
  other.save(folder_ / "differs");
  other.save_full_state(folder_ / "differs.safetensors");
  loaded.load(folder_ / "plain");
  fresh.weight.data().fill_(1);
  for (const fs::path& path : {folder_ / "differs", folder_ / "differs.safetensors"}) {
    const std::string text = text_thrown_by<InvalidArgument>([&] { loaded.load(path); });
    expect_contains(text, "mask' is expanded in the program");
    EXPECT_TRUE(torch::equal(fresh.weight.detach(), torch::ones({3})));
  }
}

TEST_F(OddTensorsTest, FileThatSomeRanksDoNotSee_IsAnErrorOnAll) {
  if (runtime_.size() == 1) GTEST_SKIP() << "needs two ranks";
  const fs::path file = write_file("model.safetensors", {{"a", torch::zeros({5})}});
  Parts model({{"a", torch::ones({5})}});
  torch::optim::SGD inner(model.parameters(), 0.5);
  DistributedOptimizer optimizer(inner, model, with(Shard::Gradients));
  const fs::path path = runtime_.rank() == 0 ? file : folder_ / "elsewhere";
  const std::string text = text_thrown_by<MismatchError>([&] { optimizer.load(path); });
  expect_contains(text, "the path is a file on rank 0, and the path is missing on rank 1");
  expect_contains(
      text_thrown_by<MismatchError>([&] { optimizer.load(file, {.strict = runtime_.rank() > 0}); }),
      "strict is false on rank 0, and strict is true on rank 1");
  // Each rank sees a file, but not the same.
  write_file("other.safetensors", {{"b", torch::zeros({5})}, {"a", torch::zeros({5})}});
  Parts both({{"a", torch::ones({5})}, {"b", torch::ones({5})}});
  torch::optim::SGD both_inner(both.parameters(), 0.5);
  DistributedOptimizer of_both(both_inner, both, with(Shard::Gradients));
  expect_contains(text_thrown_by<MismatchError>([&] {
                    of_both.load(runtime_.rank() == 0 ? file : folder_ / "other.safetensors",
                                 {.strict = false});
                  }),
                  "rank 1 has another file under this name than rank 0");
  EXPECT_EQ(optimizer.load(file).loaded, std::vector<std::string>{"a"});
}

/// A tied weight, and a buffer.
struct Tied : torch::nn::Module {
  Tied() {
    weight = register_parameter("embed", torch::ones({4}));
    register_parameter("lm_head", weight);
    other = register_parameter("other", torch::ones({2}));
  }
  at::Tensor weight, other;
};

TEST_F(OddTensorsTest, TiedWeight_IsFoundUnderAnyOfItsNames) {
  const at::Tensor values = torch::arange(4, torch::kFloat);
  const at::Tensor rest = torch::full({2}, 9.0F);
  for (const Shard mode : all_modes()) {
    Tied model;
    torch::optim::SGD inner({model.weight, model.other}, 0.5);
    DistributedOptimizer optimizer(inner, model, with(mode));
    const auto expect_loaded = [&](const fs::path& file, const LoadOptions& options) {
      const Loaded loaded = optimizer.load(file, options);
      EXPECT_EQ(loaded.loaded, (std::vector<std::string>{"embed", "other"}));
      EXPECT_TRUE(torch::equal(model.weight.detach(), values)) << name_of(mode);
      EXPECT_TRUE(torch::equal(model.other.detach(), rest)) << name_of(mode);
    };
    const fs::path last = write_file("last.safetensors", {{"lm_head", values}, {"other", rest}});
    expect_loaded(last, {});
    const fs::path both =
        write_file("both.safetensors", {{"embed", values}, {"lm_head", values}, {"other", rest}});
    expect_loaded(both, {});
    const fs::path differ = write_file(
        "differ.safetensors", {{"embed", values}, {"lm_head", values + 1}, {"other", rest}});
    expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.load(differ); }),
                    "different values for 'embed' and 'lm_head'");
    expect_loaded(differ, {.strict = false});
  }
}

TEST_F(OddTensorsTest, StrictMeansExactly_AndLooseSaysWhatItLeftOut) {
  const fs::path file =
      write_file("more.safetensors", {{"a", torch::full({5}, 2.0F)}, {"extra", torch::ones({3})}});
  const fs::path nothing = write_file("nothing.safetensors", {{"extra", torch::ones({3})}});
  for (const Shard mode : all_modes()) {
    Parts model({{"a", torch::ones({5})}, {"b", torch::ones({6}, torch::kDouble)}});
    torch::optim::SGD inner({model.part("a")}, 0.5);
    DistributedOptimizer optimizer(inner, model, with(mode));
    expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.load(file); }), "has no 'b'");
    Parts smaller({{"a", torch::ones({5})}});
    torch::optim::SGD smaller_inner(smaller.parameters(), 0.5);
    DistributedOptimizer exact(smaller_inner, smaller, with(mode));
    expect_contains(text_thrown_by<InvalidArgument>([&] { exact.load(file); }),
                    "has 'extra', which the program does not have");
    expect_contains(
        text_thrown_by<InvalidArgument>([&] { exact.load(nothing, {.strict = false}); }),
        "has no parameter or buffer of the model");
    const Loaded loaded = optimizer.load(file, {.strict = false});
    EXPECT_EQ(loaded.loaded, std::vector<std::string>{"a"});
    EXPECT_EQ(loaded.left_out, std::vector<std::string>{"b"});
    EXPECT_EQ(loaded.unused, std::vector<std::string>{"extra"});
    EXPECT_TRUE(loaded.converted.empty());
    EXPECT_EQ(model.part("a")[4].item<float>(), 2.0F);
    // Converts between floating-point types, from files and from checkpoints.
    exact.save_full_state(folder_ / "float.safetensors");
    exact.save(folder_);
    for (const fs::path& path : {folder_ / "float.safetensors", folder_}) {
      Parts wide({{"a", torch::zeros({5}, torch::kDouble)}});
      torch::optim::SGD wide_inner(wide.parameters(), 0.5);
      DistributedOptimizer converting(wide_inner, wide, with(mode));
      EXPECT_THROW(converting.load(path), InvalidArgument);
      EXPECT_EQ(converting.load(path, {.strict = false}).converted, std::vector<std::string>{"a"});
      EXPECT_EQ(wide.part("a")[4].item<double>(), 1.0) << path;
    }
    // A checkpoint of another model.
    Parts other({{"z", torch::ones({5})}});
    torch::optim::SGD other_inner(other.parameters(), 0.5);
    DistributedOptimizer strange(other_inner, other, with(mode));
    expect_contains(
        text_thrown_by<InvalidArgument>([&] { strange.load(folder_, {.strict = false}); }),
        "has no parameter or buffer of the model");
  }
}

TEST_F(OddTensorsTest, FilesAreRecognizedByTheirContent) {
  Parts model({{"a", torch::ones({5})}});
  torch::optim::SGD inner(model.parameters(), 0.5);
  DistributedOptimizer optimizer(inner, model, with(Shard::Optimizer));
  const auto error_with = [&](const std::string& name, const std::string& bytes) {
    const fs::path path = write_bytes(name, bytes);
    const std::string text = text_thrown_by<InvalidArgument>([&] { optimizer.load(path); });
    expect_contains(text, name);
    return text;
  };
  expect_contains(error_with("old.safetensors", "\x80\x02}q\x01X\x01"), "is a pickle of Python");
  expect_contains(error_with("model.pt", "{\"metadata\": {}}"), "it has no 'weight_map'");
  expect_contains(error_with("text", "once upon a time"), "is neither a safetensors file nor");
  expect_contains(error_with("zip.pt", std::string("PK\x03\x04 no more", 12)),
                  "save_file(module.state_dict()");
  const fs::path file = write_file("model.pt.1", {{"a", torch::full({5}, 3.0F)}});
  optimizer.load(file);
  EXPECT_EQ(model.part("a")[0].item<float>(), 3.0F);
  // Kolo has no uint32.
  const std::string header = R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},)"
                             R"("count":{"dtype":"U32","shape":[2],"data_offsets":[20,28]}})";
  std::string bytes(1, static_cast<char>(header.size()));
  bytes += std::string(7, '\0') + header + std::string(28, '\0');
  const fs::path mixed = write_bytes("MIXED.SAFETENSORS", bytes);
  expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.load(mixed); }), "has 'count'");
  EXPECT_EQ(optimizer.load(mixed, {.strict = false}).unused, std::vector<std::string>{"count"});
  EXPECT_EQ(model.part("a")[0].item<float>(), 0.0F);
}

TEST_F(OddTensorsTest, FoldersOfHuggingFace_AreLoaded) {
  const at::Tensor a = torch::arange(300, torch::kFloat);
  const at::Tensor b = torch::arange(300, 305, torch::kFloat);
  const auto write_shards = [&](const std::map<std::string, at::Tensor>& second) {
    write_file("hub/model-00001-of-00002.safetensors", {{"a", a}});
    write_file("hub/model-00002-of-00002.safetensors", second);
  };
  write_shards({{"b", b}});
  const fs::path index =
      write_bytes("hub/model.safetensors.index.json",
                  R"({"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",)"
                  R"( "b": "model-00002-of-00002.safetensors"}})");
  const fs::path file = write_file("one/model.safetensors", {{"a", a}, {"b", b}});
  const std::map<std::string, at::Tensor> parts{{"a", torch::zeros({300})},
                                                {"b", torch::zeros({5})}};
  for (const Shard mode : all_modes()) {
    for (const auto& [path, opened] : {std::pair(folder_ / "hub", index), std::pair(index, index),
                                       std::pair(folder_ / "one", file)}) {
      Parts model(parts);
      torch::optim::SGD inner(model.parameters(), 0.5);
      DistributedOptimizer optimizer(inner, model, with(mode));
      const Loaded loaded = optimizer.load(path);
      EXPECT_EQ(loaded.path, opened);
      EXPECT_EQ(loaded.loaded, (std::vector<std::string>{"a", "b"}));
      EXPECT_TRUE(torch::equal(model.part("a").detach(), a)) << path << ", " << name_of(mode);
      EXPECT_TRUE(torch::equal(model.part("b").detach(), b)) << path << ", " << name_of(mode);
    }
  }
  Parts model(parts);
  torch::optim::SGD inner(model.parameters(), 0.5);
  DistributedOptimizer optimizer(inner, model, with(Shard::Optimizer));
  write_shards({{"b", b}, {"a", a}});
  expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.load(folder_ / "hub"); }),
                  "tensor 'a' is in file");
  barrier();
  if (runtime_.rank() == 0) fs::remove(folder_ / "hub" / "model-00002-of-00002.safetensors");
  barrier();
  expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.load(folder_ / "hub"); }),
                  "model-00002-of-00002.safetensors' is missing");
  // What the folder is, is compared first; a job's own checkpoints in it come first.
  if (runtime_.size() > 1) {
    const fs::path empty = folder_ / "empty";
    fs::create_directories(empty);
    expect_contains(text_thrown_by<MismatchError>(
                        [&] { optimizer.load(runtime_.rank() == 0 ? folder_ / "one" : empty); }),
                    "the path is a folder of a model on rank 0, and the path is a folder on rank");
  }
  optimizer.save(folder_ / "one");
  EXPECT_EQ(optimizer.load(folder_ / "one").path, folder_ / "one" / "checkpoint-00000001");
}

TEST_F(OddTensorsTest, ParametersAlone_AreLoadedByOneRank) {
  const at::Tensor a = torch::arange(300, torch::kFloat);
  for (const Shard mode : all_modes()) {
    Parts model({{"a", a}});
    torch::optim::SGD inner(model.parameters(), 0.5);
    DistributedOptimizer optimizer(inner, model, with(mode));
    optimizer.save(folder_);
    expect_contains(text_thrown_by<InvalidArgument>([&] { load_parameters(model, folder_); }),
                    "a DistributedOptimizer trains 'a'");
    if (runtime_.rank() == runtime_.size() - 1) {
      Parts alone({{"a", torch::zeros({300}, torch::kDouble)}});
      expect_contains(text_thrown_by<InvalidArgument>([&] { load_parameters(alone, folder_); }),
                      "float64 [300]");
      const Loaded loaded = load_parameters(alone, folder_, {.strict = false});
      EXPECT_EQ(loaded.converted, std::vector<std::string>{"a"});
      EXPECT_TRUE(torch::equal(alone.part("a").detach(), a.to(torch::kDouble))) << name_of(mode);
    }
  }
  EXPECT_THROW(
      {
        Parts alone({{"a", a}});
        load_parameters(alone, folder_ / "nowhere");
      },
      InvalidArgument);
}

TEST_F(OddTensorsTest, NameThatIsNotUtf8_IsNamed) {
  Parts model({{"a", torch::ones({5})}, {"caf\xe9", torch::ones({5})}});
  torch::optim::SGD inner(model.parameters(), 0.5);
  DistributedOptimizer optimizer(inner, model, with(Shard::None));
  for (const auto& save : {std::function([&] { optimizer.save(folder_); }), std::function([&] {
                             optimizer.save_full_state(folder_ / "all.safetensors");
                           })}) {
    expect_contains(text_thrown_by<InvalidArgument>(save),
                    "the name of parameter 'caf\\xe9' is not UTF-8");
  }
}

/// State that save() can write but that load() would refuse.
TEST_F(OddTensorsTest, WhatWouldNotLoad_IsNotPublished) {
  using namespace torch::optim;
  for (const Shard mode : all_modes()) {
    Parts model({{"a", torch::ones({5})}});
    SGD inner(model.parameters(), SGDOptions(0.5).momentum(0.5));
    if (mode != Shard::Full) {
      auto state = std::make_unique<SGDParamState>();
      state->momentum_buffer(torch::zeros({4}));  // of another parameter
      inner.state()[model.part("a").unsafeGetTensorImpl()] = std::move(state);
    }
    DistributedOptimizer optimizer(inner, model, with(mode));
    if (mode == Shard::Full) continue;
    expect_contains(text_thrown_by<InvalidArgument>([&] { optimizer.save(folder_); }),
                    "'optimizer.momentum_buffer.a'");
    barrier();  // the first rank has removed what was written
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_EQ(entry.path().filename(), ".lock");
    }
    barrier();
  }
}

}  // namespace kolo::test::odd_tensors_test
