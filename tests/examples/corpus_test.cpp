#include "gpt/corpus.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace corpus_test {

namespace fs = std::filesystem;

class CorpusTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    const fs::path file = folder_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

  std::string error_of(const std::vector<fs::path>& files, std::size_t least_bytes = 1) const {
    try {
      gpt::load_corpus(files, least_bytes);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) / ("corpus_test." + std::to_string(getpid()));
};

TEST_F(CorpusTest, SingleFile_LastTenthOfItsBytesIsHeldOut) {
  const gpt::Corpus corpus = gpt::load_corpus({write("a", "0123456789abcdefghij")}, 2);
  EXPECT_EQ(corpus.training, "0123456789abcdefgh");
  EXPECT_EQ(corpus.held_out, "ij");
  EXPECT_EQ(corpus.training_files, 1U);
  EXPECT_EQ(corpus.held_out_files, 0U);
}

TEST_F(CorpusTest, TwentyOneFiles_TenthAndTwentiethAreHeldOut) {
  std::vector<fs::path> files;
  std::string training;
  for (int i = 0; i < 21; ++i) {
    const std::string text = std::to_string(i) + ";";
    files.push_back(write(std::to_string(i), text));
    if (i != 9 && i != 19) training += text;
  }
  const gpt::Corpus corpus = gpt::load_corpus(files, 1);
  EXPECT_EQ(corpus.training, training);
  EXPECT_EQ(corpus.held_out, "9;19;");
  EXPECT_EQ(corpus.training_files, 19U);
  EXPECT_EQ(corpus.held_out_files, 2U);
}

TEST_F(CorpusTest, BytesSurvive) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  const gpt::Corpus corpus = gpt::load_corpus({write("a", text)}, 1);
  EXPECT_EQ(corpus.training + corpus.held_out, text);
}

TEST_F(CorpusTest, UnsuitableFiles_AreNamedWithTheReason) {
  const fs::path good = write("good", "text");
  const fs::path empty = write("empty", "");
  EXPECT_EQ(error_of({good, empty}), "cannot read the text " + empty.string() + ": it is empty");
  const fs::path missing = folder_ / "missing";
  EXPECT_EQ(error_of({missing}),
            "cannot read the text " + missing.string() + ": No such file or directory");
  EXPECT_EQ(error_of({folder_}),
            "cannot read the text " + folder_.string() + ": it is a folder; name the files in it");
}

TEST_F(CorpusTest, TooShortPart_IsAnError) {
  const fs::path file = write("a", std::string(99, 'x'));  // 90 and 9 bytes
  EXPECT_EQ(error_of({file}, 9), "no error");
  EXPECT_NE(error_of({file}, 10).find("9 bytes to hold out, but the context needs 10"),
            std::string::npos);
  EXPECT_NE(error_of({file}, 91).find("90 bytes to train on, but the context needs 91"),
            std::string::npos);
}

TEST_F(CorpusTest, TorchHeaders_AreThoseOfThreeFoldersInByteOrder) {
  for (const char* name : {"torch/b.h", "torch/B.h", "torch/csrc/x.hpp", "ATen/z.h",
                           "ATen/cuda.cuh", "c10/a.h", "c10/a.txt", "pybind11/p.h"}) {
    write(name, "x");
  }
  std::vector<std::string> names;
  for (const fs::path& file : gpt::torch_headers(folder_)) {
    names.push_back(fs::relative(file, folder_).generic_string());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"ATen/cuda.cuh", "ATen/z.h", "c10/a.h", "torch/B.h",
                                             "torch/b.h", "torch/csrc/x.hpp"}));
}

TEST_F(CorpusTest, TorchHeaders_NoneIsAnErrorThatSaysWhatToDo) {
  try {
    gpt::torch_headers(folder_);
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("--text"), std::string::npos);
  }
}

}  // namespace corpus_test
