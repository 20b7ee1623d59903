#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"

namespace torch::nn {
class Module;
}

#pragma GCC visibility push(default)
namespace kolo {

class GradScaler;

/// What DistributedOptimizer::save writes besides the training state; the same on all ranks.
struct SaveOptions {
  int keep_last = 1;                            ///< keep this many of the newest; 0: all
  const GradScaler* scaler = nullptr;           ///< saves its state too
  std::map<std::string, std::string> extras{};  ///< anything else in UTF-8, such as the epoch
  /// Returns once this rank has copied its share to memory that it keeps for further saves, and
  /// writes the files while training goes on. The next save(), load() or join(), or
  /// wait_for_save(), waits until they are on the disk, and throws what went wrong. Other
  /// optimizers and kolo::join() do not wait: ranks must not join the process set before.
  bool in_background = false;
};

/// What DistributedOptimizer::save has written.
struct Saved {
  std::filesystem::path path;        ///< the checkpoint; empty while it is written in background
  std::vector<std::string> saved{};  ///< the parameters and buffers in it
};

/// What DistributedOptimizer::load reads; the same on all ranks.
struct LoadOptions {
  /// Requires the checkpoint or file to hold exactly the parameters and buffers of the model, and
  /// state of no parameter that is in no group of the optimizer; groups may hold frozen ones. With
  /// the optimizer's state, also the same class of optimizer, the same parameters together in a
  /// group, and options that are 0 where the program's are, but for the learning rate: momentum or
  /// weight_decay, which the program has switched on and the one that saved had not.
  /// Otherwise load() takes those that have the same name and shape in both, at least one; between
  /// floating-point types, and between complex ones, it converts: for fine-tuning. Groups whose
  /// parameters were in several keep the program's options.
  bool strict = true;
  bool optimizer_state = true;   ///< and options; false: only parameters and buffers
  bool random_state = true;      ///< CPU and device generators of the ranks in the checkpoint
  GradScaler* scaler = nullptr;  ///< restored; if null and strict, the checkpoint must have none
};

/// What load_parameters() reads.
struct LoadParametersOptions {
  bool strict = true;  ///< as in LoadOptions
};

/// What DistributedOptimizer::load and load_parameters() found.
struct Loaded {
  std::filesystem::path path;                   ///< the checkpoint, the file, or the index of files
  std::int64_t steps = 0;                       ///< steps taken when it was saved
  std::map<std::string, std::string> extras{};  ///< as given to save()
  std::string optimizer{};                      ///< the class of the one that was saved
  std::vector<std::string> loaded{};     ///< the model's parameters and buffers that it has set
  std::vector<std::string> converted{};  ///< those of them that had another dtype there
  /// The model's parameters and buffers that it has not set; those that another optimizer gathers
  /// on use are set by that one's load().
  std::vector<std::string> left_out{};
  /// Tensors there that the program has no place for: of the model, and of the state of
  /// parameters that are in no group of the optimizer, such as "optimizer.exp_avg.fc.weight".
  std::vector<std::string> unused{};
  /// The options that it has changed, such as "lr of parameter group 0: 0.1, now 0.05".
  std::vector<std::string> replaced{};
};

/// Whether `path` is a file, or a folder that is or has a checkpoint of DistributedOptimizer::save.
/// Collective and blocking: all ranks get the same answer, so that a program can decide by it
/// whether to load or to begin anew.
/// @return whether any rank of the set sees one; load() then says which ranks do not
/// @throws the errors of all collectives
bool has_checkpoint(const std::filesystem::path& path, const OperationOptions& options = {});

/// Sets the parameters and buffers of a module to those of a checkpoint, without an optimizer: for
/// inference and evaluation, or before the module is wrapped. Needs no Runtime and no MPI, and is
/// not collective: any rank may call it alone, and each that needs the values calls it. Reads
/// checkpoints of any number of ranks and any shard mode. Values are those with which the model ran
/// in training, in its parameters' dtype; `master_weights` are not read. Checks names, shapes,
/// dtypes and checksums before it changes anything.
/// @param path what DistributedOptimizer::load takes
/// @return where it found them, and which tensors it took; of a checkpoint, also steps and extras
/// @throws InvalidArgument, naming file and tensor, if something is missing, damaged or does not
///   match the module; also if a DistributedOptimizer that lives trains the module: use its load()
/// @throws BackendError if a file cannot be read, or another program saves into the folder for
///   longer than half of KOLO_TIMEOUT
Loaded load_parameters(torch::nn::Module& module, const std::filesystem::path& path,
                       const LoadParametersOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
