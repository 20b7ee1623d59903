#pragma once

#include <sstream>

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

namespace kolo::tensors {

/// What was written, to be read.
inline torch::serialize::InputArchive to_input(torch::serialize::OutputArchive& written) {
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

}  // namespace kolo::tensors
