// The safetensors format: writing and reading back; files that are not valid are refused.
#include "checkpoint/safetensors.hpp"

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/model.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::safetensors_test {

using checkpoints::SafetensorsReader;
using checkpoints::SafetensorsTensor;
using checkpoints::SafetensorsWriter;

class SafetensorsTest : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "new" / "model.safetensors"; }
  /// The number of files that have not been renamed to their final names.
  std::ptrdiff_t unfinished() const {
    std::ptrdiff_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path().parent_path())) {
      count += entry.path().filename().string().starts_with(".incomplete-") ? 1 : 0;
    }
    return count;
  }
  std::filesystem::path incomplete() const {
    return folder_.path() / "new" / ".incomplete-model.safetensors";
  }

  /// Appends the data in pieces of `piece` bytes.
  void write(const std::vector<TestTensor>& model, unsigned salt, std::size_t piece) const {
    std::vector<SafetensorsTensor> tensors;
    Bytes all;
    for (const TestTensor& tensor : model) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
      const Bytes bytes = contents(tensor, salt);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    SafetensorsWriter writer(path(), tensors);
    for (std::size_t done = 0; done < all.size(); done += piece) {
      writer.append(all.data() + done, std::min(piece, all.size() - done));
    }
    writer.close();
  }

  void expect_contents(const std::vector<TestTensor>& model, unsigned salt) const {
    const SafetensorsReader reader(path());
    EXPECT_EQ(reader.tensors().size(), model.size());
    for (const TestTensor& tensor : model) {
      EXPECT_EQ(reader.tensors().at(tensor.name).dtype, tensor.dtype);
      EXPECT_EQ(reader.tensors().at(tensor.name).shape, tensor.shape);
      const Bytes expected = contents(tensor, salt);
      const std::int64_t skipped = tensor.elements() / 3;
      Bytes bytes(expected.size());
      reader.read(tensor.name, tensor.dtype, 0, std::as_writable_bytes(std::span(bytes)));
      EXPECT_EQ(bytes, expected) << tensor.name;
      bytes.resize(static_cast<std::size_t>(
          checkpoints::bytes_of(tensor.dtype, tensor.elements() - skipped)));
      reader.read(tensor.name, tensor.dtype, skipped, std::as_writable_bytes(std::span(bytes)));
      EXPECT_TRUE(std::equal(bytes.rbegin(), bytes.rend(), expected.rbegin())) << tensor.name;
    }
  }

  /// The error text for a file with this header and `data` bytes of data.
  std::string error_text(const std::string& header, std::size_t data) const {
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size() & 0xff);
    bytes[1] = static_cast<char>(header.size() >> 8);
    std::filesystem::create_directories(path().parent_path());
    write_file(path(), bytes + header + std::string(data, 'x'));
    return text_thrown_by<InvalidArgument>([&] { SafetensorsReader reader(path()); });
  }
  void expect_refused(const std::string& header, std::size_t data, const std::string& text) const {
    const std::string thrown = error_text(header, data);
    expect_contains(thrown, "file '" + path().string() + "' is not a safetensors file: ");
    expect_contains(thrown, text);
  }

  TemporaryFolder folder_;
};

TEST_F(SafetensorsTest, RoundTrip_ReturnsWhatWasWritten) {
  for (const std::size_t piece :
       {std::size_t{999'983}, std::size_t{3} << 20, std::size_t{1} << 30}) {
    write(large_model(), 3, piece);
    expect_contents(large_model(), 3);
  }
  write(small_model(), 4, 1);
  expect_contents(small_model(), 4);
  write({}, 1, 1);
  EXPECT_TRUE(SafetensorsReader(path()).tensors().empty());
}

TEST_F(SafetensorsTest, Data_IsAligned) {
  write(small_model(), 3, 100);
  const std::string bytes = read_file(path());
  std::size_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= std::size_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  EXPECT_EQ((8 + length) % 64, 0U);
  EXPECT_EQ(bytes[8], '{');
}

TEST_F(SafetensorsTest, OldFile_StaysUntilTheNewOneIsComplete) {
  write(small_model(), 3, 100);
  {
    SafetensorsWriter writer(path(), {{"a", DType::UInt8, {5}}});
    writer.append("1234", 4);
    EXPECT_EQ(unfinished(), 1);
    expect_contains(text_thrown_by<InvalidArgument>([&] { writer.append("56", 2); }),
                    "2 bytes were appended, its tensors have only 1 more");
    expect_contains(text_thrown_by<InvalidArgument>([&] { writer.close(); }),
                    "its tensors have 1 bytes more than were appended");
    expect_contents(small_model(), 3);
  }
  EXPECT_EQ(unfinished(), 0);
  expect_contents(small_model(), 3);
  write_file(incomplete(), "of an attempt that died");
  const std::string removed = ".removed-12-model.safetensors";
  write_file(path().parent_path() / removed, "of a program that died when it removed an attempt");
  const std::filesystem::path other =
      path().parent_path() / ".incomplete-12-other-model.safetensors";
  write_file(other, "of another file");
  write(small_model(), 4, 100);
  expect_contents(small_model(), 4);
  EXPECT_EQ(unfinished(), 1);
  EXPECT_FALSE(std::filesystem::exists(path().parent_path() / removed));
  EXPECT_EQ(read_file(other), "of another file");
}

TEST_F(SafetensorsTest, FolderOfTheName_IsRefused) {
  std::filesystem::create_directories(path() / "inside");
  expect_contains(text_thrown_by<BackendError>([&] { write({}, 1, 1); }),
                  "cannot write file '" + path().string() + "': a folder has this name");
  EXPECT_EQ(unfinished(), 0);
}

TEST_F(SafetensorsTest, TwoPrograms_PublishNoUnfinishedFile) {
  write(small_model(), 3, 100);
  SafetensorsWriter first(path(), {{"a", DType::UInt8, {5}}});
  first.append("12345", 5);
  SafetensorsWriter second(path(), {{"a", DType::UInt8, {5}}});
  second.append("67", 2);
  text_thrown_by<BackendError>([&] { first.close(); });
  expect_contents(small_model(), 3);
  second.append("890", 3);
  second.close();
  std::vector<std::byte> bytes(5);
  SafetensorsReader(path()).read("a", DType::UInt8, 0, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "67890", 5), 0);
}

TEST_F(SafetensorsTest, ImpossibleTensors_AreRefused) {
  const auto text_of = [&](const std::vector<SafetensorsTensor>& tensors) {
    return text_thrown_by<InvalidArgument>([&] { SafetensorsWriter writer(path(), tensors); });
  };
  expect_contains(text_of({{"a", DType::Int8, {1}}, {"a", DType::Int8, {1}}}),
                  "two tensors are named 'a'");
  expect_contains(text_of({{"__metadata__", DType::Int8, {1}}}), "'__metadata__'");
  expect_contains(text_of({{"\xff", DType::Int8, {1}}}), "UTF-8");
  expect_contains(text_of({{"a", DType::Int8, {-1}}}), "impossible shape");
}

TEST_F(SafetensorsTest, MissingElements_AreRefused) {
  write(small_model(), 3, 100);
  const SafetensorsReader reader(path());
  std::vector<std::byte> bytes(100);
  const auto text_of = [&](const std::string& name, std::int64_t begin, std::size_t count,
                           DType dtype = DType::Int8) {
    return text_thrown_by<InvalidArgument>(
        [&] { reader.read(name, dtype, begin, std::span(bytes).first(count)); });
  };
  expect_contains(text_of("other", 0, 1), "tensor 'other' is not in it");
  expect_contains(text_of("i8", 10, 6), "tensor 'i8' has 15 elements, but 6 from 10 on");
  expect_contains(text_of("i8", -1, 2), "2 from -1 on");
  expect_contains(text_of("i64", 0, 8), "tensor 'i64' is int64, but int8 was asked for");
  expect_contains(text_of("i64", 0, 9, DType::Int64), "room for 9 bytes");
  expect_contains(text_thrown_by<InvalidArgument>(
                      [&] { SafetensorsReader missing(folder_.path() / "missing"); }),
                  "/missing' is missing");
}

TEST_F(SafetensorsTest, OtherFiles_AreRefused) {
  write_file(folder_.path() / "short", "1234567");
  expect_contains(
      text_thrown_by<InvalidArgument>([&] { SafetensorsReader reader(folder_.path() / "short"); }),
      "/short' is not a safetensors file: it is truncated");
  write_file(folder_.path() / "text", "a text that is no such file");
  expect_contains(
      text_thrown_by<InvalidArgument>([&] { SafetensorsReader reader(folder_.path() / "text"); }),
      "it claims a header of ");
  write(small_model(), 3, 100);
  const std::string bytes = read_file(path());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{8}, std::size_t{500}, bytes.size() - 1}) {
    write_file(path(), bytes.substr(0, size));
    expect_contains(text_thrown_by<InvalidArgument>([&] { SafetensorsReader reader(path()); }),
                    path().string());
  }
  write_file(path(), bytes + "x");
  expect_contains(text_thrown_by<InvalidArgument>([&] { SafetensorsReader reader(path()); }),
                  "its tensors take");
}

// The format has more dtypes than Kolo, and gets more: other tensors of such a file are read.
TEST_F(SafetensorsTest, TensorsOfOtherTypes_AreSkipped) {
  const std::string json = R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                           R"("b":{"dtype":"U32","shape":[1],"data_offsets":[3,7]},)"
                           R"("c":{"dtype":"I8","shape":[2],"data_offsets":[7,9]}})";
  std::string bytes(1, static_cast<char>(json.size()));
  write_file(folder_.path() / "mixed", bytes + std::string(7, '\0') + json + "1234567xy");
  const SafetensorsReader reader(folder_.path() / "mixed");
  EXPECT_EQ(reader.tensors().at("a").dtype_name, "F8_E4M3");
  std::vector<std::byte> values(2);
  reader.read("c", DType::Int8, 0, values);
  EXPECT_EQ(std::memcmp(values.data(), "xy", 2), 0);
  expect_contains(
      text_thrown_by<InvalidArgument>([&] { reader.read("a", DType::Int8, 0, values); }),
      "tensor 'a' is F8_E4M3, a type that Kolo does not have");
}

TEST_F(SafetensorsTest, InvalidHeaders_AreRefused) {
  const std::string f32 = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  expect_refused("{\"a\":{" + f32, 8, "parse error");
  expect_refused("[{" + f32 + "}]", 8, "its header does not begin with {");
  expect_refused("{\"a\":{" + f32 + "},\"a\":{" + f32 + "}}", 8, "'a' appears twice");
  expect_refused("{\"a\":{" + f32 + ",\"shape\":[2]}}", 8, "'shape' appears twice");
  expect_refused("{\"a\":{" + f32 + ",\"more\":1}}", 8, "tensor 'a': it does not have exactly");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"offsets":[0,8]}})", 8, "tensor 'a': ");
  expect_refused(R"({"a":7})", 0, "tensor 'a': it does not have exactly");
  expect_refused(R"({"a":{"dtype":7,"shape":[8],"data_offsets":[0,8]}})", 8, "tensor 'a': ");
  for (const char* shape : {"[-2]", "[2.0]", "2", "[18446744073709551615]", "[null]", "[[2]]"}) {
    expect_refused(
        std::string(R"({"a":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,8]}})", 8,
        "tensor 'a': ");
  }
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
                 "tensor 'a': tensor 'a' has an impossible shape");
  for (const char* offsets : {"[8,0]", "[0]", "[0,8,8]", "[-8,0]", "[0,7]", "[0,12]"}) {
    expect_refused(
        std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)") + offsets + "}}", 8,
        "tensor 'a': ");
  }
  expect_refused("{\"a\":{" + f32 + "},\"b\":{" + f32 + "}}", 8,
                 "tensor 'b' begins at byte 0 of the data instead of 8");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
                 "tensor 'a' begins at byte 4 of the data instead of 0");
  expect_refused("{\"a\":{" + f32 + "}}", 9, "its tensors take 8 bytes, but it has data of 9");
  expect_refused("{\"a\":{" + f32 + "}}", 7, "its tensors take 8 bytes, but it has data of 7");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, "metadata 'a' is not a string");
  const std::string f64 = R"("a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]})";
  for (const char* const names : {R"([\"b\"])", R"([\"a\",\"a\"])"}) {
    expect_refused(
        R"({"__metadata__":{"kolo.complex128":")" + std::string(names) + "\"}," + f64 + "}", 16,
        "its header: its metadata has a complex128 tensor '");
  }
  expect_refused(R"({"__metadata__":{"kolo.complex128":"[\"a\"]"},"a":{)" + f32 + "}}", 8,
                 "complex128 tensor 'a', which is not F64 [..., 2]");
  expect_refused(R"({"__metadata__":{"kolo.complex128":"[7]"},)" + f64 + "}", 16, "its header: ");
  expect_refused(R"({"__metadata__":[]})", 0, "its metadata is not a JSON object");
  expect_refused("{\"\xff\":{" + f32 + "}}", 8, "parse error");
}

}  // namespace kolo::test::safetensors_test
