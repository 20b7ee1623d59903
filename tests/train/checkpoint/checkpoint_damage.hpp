#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

#include "train/checkpoint/checkpoint_image.hpp"

namespace kolo::test {

/// Damages a checkpoint of a training run in a way that depends on a seed.
class CheckpointDamage {
 public:
  /// `good` is the content of the checkpoint in the folder `files`; `other` is another checkpoint
  /// of the same program.
  CheckpointDamage(const CheckpointImage& good, std::filesystem::path files,
                   std::filesystem::path other)
      : good_(good), files_(std::move(files)), other_(std::move(other)) {}

  /// Writes the damaged checkpoint into `folder`, which must not exist yet. Collective over the
  /// world, with the same seed on all ranks.
  /// @return a description of the damage
  std::string write(const std::filesystem::path& folder, std::uint64_t seed);

 private:
  std::size_t below(std::size_t end);
  template <class Container>
  auto& any(Container& container);

  std::string damage_file(const std::filesystem::path& checkpoint);
  std::string cut_file(const std::filesystem::path& checkpoint);
  std::string swap_file(const std::filesystem::path& checkpoint);
  std::string forge_tensor(CheckpointImage& image);
  std::string forge_details(CheckpointImage& image);
  std::string forge_index(const std::filesystem::path& checkpoint);
  std::filesystem::path any_file(const std::filesystem::path& checkpoint);

  const CheckpointImage& good_;
  const std::filesystem::path files_;
  const std::filesystem::path other_;
  std::mt19937_64 random_;
};

}  // namespace kolo::test
