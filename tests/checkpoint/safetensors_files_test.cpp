// A model's tensors in several safetensors files, which an index of Hugging Face lists.
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/model.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::safetensors_files_test {

using checkpoints::SafetensorsFiles;

const TestTensor kWeight{"weight", DType::Float32, {5, 3}};
const TestTensor kBias{"bias", DType::Float64, {3}};
const TestTensor kSteps{"steps", DType::Int64, {}};

class SafetensorsFilesTest : public testing::Test {
 protected:
  using WeightMap = std::map<std::string, std::string>;

  SafetensorsFilesTest() {
    write("model-00001-of-00002.safetensors", {kWeight, kSteps});
    write("model-00002-of-00002.safetensors", {kBias});
    write_index({{"weight", "model-00001-of-00002.safetensors"},
                 {"steps", "model-00001-of-00002.safetensors"},
                 {"bias", "model-00002-of-00002.safetensors"}});
  }
  std::filesystem::path index() const { return folder_.path() / checkpoints::kModelIndexName; }
  void write_index(const WeightMap& files) const {
    write_file(index(),
               nlohmann::json{{"metadata", {{"total_size", 92}}}, {"weight_map", files}}.dump());
  }
  void write(const std::string& name, const std::vector<TestTensor>& model) const {
    std::vector<checkpoints::SafetensorsTensor> entries;
    for (const TestTensor& each : model) entries.push_back({each.name, each.dtype, each.shape});
    checkpoints::SafetensorsWriter writer(folder_.path() / name, entries);
    for (const TestTensor& each : model) {
      const Bytes bytes = contents(each, 1);
      writer.append(bytes.data(), bytes.size());
    }
    writer.close();
  }
  void expect_refused(const std::vector<std::string>& texts) const {
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { SafetensorsFiles::of_index(index()); });
    expect_contains(text, "the index '" + index().string() + "' of a model: ");
    for (const std::string& part : texts) expect_contains(text, part);
  }

  TemporaryFolder folder_;
};

TEST_F(SafetensorsFilesTest, EveryTensor_IsReadFromItsFile) {
  const SafetensorsFiles files = SafetensorsFiles::of_index(index());
  EXPECT_EQ(files.tensors().size(), 3U);
  for (const TestTensor& tensor : {kWeight, kBias, kSteps}) {
    EXPECT_EQ(files.tensors().at(tensor.name).shape, tensor.shape);
    Bytes bytes(static_cast<std::size_t>(tensor.size()));
    files.read(tensor.name, tensor.dtype, 0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, contents(tensor, 1)) << tensor.name;
  }
  const Bytes whole = contents(kBias, 1);
  Bytes last(8);
  files.read("bias", DType::Float64, 2, std::as_writable_bytes(std::span(last)));
  EXPECT_EQ(last, Bytes(whole.begin() + 16, whole.end()));
}

TEST_F(SafetensorsFilesTest, IndexThatDoesNotFitItsFiles_IsRefused) {
  std::filesystem::remove(folder_.path() / "model-00002-of-00002.safetensors");
  expect_refused({"model-00002-of-00002.safetensors' is missing"});
  write("model-00002-of-00002.safetensors", {kSteps, kBias});
  expect_refused({"tensor 'steps' is in file '", "' and in file '",
                  "/model-00001-of-00002.safetensors'", "/model-00002-of-00002.safetensors'"});
  write("model-00002-of-00002.safetensors", {});
  expect_refused(
      {"tensor 'bias' is not in file 'model-00002-of-00002.safetensors', where it should be"});
  write("model-00002-of-00002.safetensors", {kBias});
  write_index({{"weight", "model-00001-of-00002.safetensors"},
               {"steps", "model-00002-of-00002.safetensors"}});
  expect_refused({"tensor 'steps' is not in file 'model-00002-of-00002.safetensors'"});
}

TEST_F(SafetensorsFilesTest, FilesElsewhere_AreRefused) {
  write("other/model.safetensors", {kBias});
  for (const std::string name :
       {"other/model.safetensors", "../model.safetensors", "/etc/passwd", "..", ".", ""}) {
    write_index({{"bias", name}});
    expect_refused({"'" + name + "' is not the name of a file in its folder"});
  }
}

TEST_F(SafetensorsFilesTest, OtherIndexes_AreRefused) {
  for (const char* const text :
       {"{}", R"({"weight_map": 7})", R"({"files": [], "format": "kolo checkpoint"})"}) {
    write_file(index(), text);
    expect_refused({"it has no 'weight_map'"});
  }
  write_file(index(), R"({"weight_map": {"bias": 7}})");
  expect_refused({"the file of tensor 'bias' is not a string"});
  write_file(index(), R"({"weight_map": {"bias": "a", "bias": "b"}})");
  expect_refused({"'bias' appears twice"});
  write_file(index(), R"({"weight_map": )");
  expect_refused({"parse error"});
  std::filesystem::resize_file(index(), 100'000'001);  // without blocks on the disk
  expect_refused({"it has 100000001 bytes, more than 100000000"});
}

}  // namespace kolo::test::safetensors_files_test
