#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/command_line.hpp"
#include "kolo/shard.hpp"
#include "kolo/tensor_view.hpp"

namespace gpt {

/// The options of train_gpt; the defaults are those of the preset "small".
struct Options {
  int layers = 3;
  int width = 128;
  int heads = 4;
  int context = 64;  ///< bytes

  int batch = 32;  ///< windows of every rank in every step
  int steps = 1000;
  std::string optimizer = "adamw";  ///< adamw8bit or muon
  double learning_rate = 3e-3;      ///< the peak of the schedule
  int seed = 1;

  std::vector<std::filesystem::path> text;  ///< files and folders; empty: headers of LibTorch
  std::string compression = "none";         ///< its name
  kolo::DeviceKind device = kolo::DeviceKind::Cpu;
  std::optional<kolo::Shard> shard;    ///< what is sharded over the ranks
  bool fused = false;                  ///< LibTorch's fused kernel for AdamW
  int efficiency = 0;                  ///< rounds in which to measure it instead of training
  std::filesystem::path json;          ///< empty: no report in a file
  std::optional<double> require_loss;  ///< nats/byte that the validation loss must not exceed

  std::filesystem::path save;         ///< folder of checkpoints; empty: none
  int save_every = 0;                 ///< steps; 0: only after the last
  std::filesystem::path load;         ///< a checkpoint, a folder of them, or a file; empty: none
  std::filesystem::path export_file;  ///< for the full state; empty: none
};

/// Those of the preset "medium".
Options medium_preset();

/// The options, or the exit after --help or an error.
std::variant<Options, examples::Exit> parse_options(int argc, const char* const* argv);

/// The learning rate of `step`, 0 … options.steps - 1: rises linearly over the first twentieth of
/// the steps, then falls to zero along half a cosine.
double learning_rate(const Options& options, int step);

}  // namespace gpt
