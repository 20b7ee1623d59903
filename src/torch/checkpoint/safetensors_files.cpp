#include "torch/checkpoint/safetensors_files.hpp"

#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "torch/checkpoint/file_reader.hpp"
#include "torch/checkpoint/json_fields.hpp"
#include "torch/checkpoint/printable.hpp"

namespace kolo::train {
namespace {

constexpr std::int64_t kMaxIndexFileBytes = 100'000'000;  // as many as a header may have

/// The index must not lead out of its folder.
void require_file_name(const std::string& name) {
  if (!name.empty() && name != "." && name != ".." &&
      name.find_first_of(std::string_view("/\0", 2)) == std::string::npos) {
    return;
  }
  throw InvalidArgument("'" + printable(name) + "' is not the name of a file in its folder");
}

/// The file's name of each tensor.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path) {
  const FileReader file(path);
  if (file.size() > kMaxIndexFileBytes) {
    throw InvalidArgument("it has " + std::to_string(file.size()) + " bytes, more than " +
                          std::to_string(kMaxIndexFileBytes));
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, file.size(), text.data());
  std::map<std::string, std::string> files;
  try {
    const nlohmann::json index = parse_json(text);
    const auto weights = index.find("weight_map");
    if (weights == index.end() || !weights->is_object()) {
      throw InvalidArgument("it has no 'weight_map', which says where tensors are");
    }
    for (const auto& [tensor, name] : weights->items()) {
      if (!name.is_string()) {
        throw InvalidArgument("the file of tensor '" + printable(tensor) + "' is not a string");
      }
      require_file_name(files[tensor] = name.get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(error.what());
  }
  return files;
}

}  // namespace

SafetensorsFiles SafetensorsFiles::of_file(const std::filesystem::path& path) {
  SafetensorsFiles files;
  files.add(path);
  return files;
}

SafetensorsFiles SafetensorsFiles::of_index(const std::filesystem::path& path) {
  try {
    const std::map<std::string, std::string> weight_map = read_weight_map(path);
    std::map<std::string, std::size_t> places;
    SafetensorsFiles files;
    for (const auto& [tensor, name] : weight_map) {
      const auto [place, is_new] = places.emplace(name, files.files_.size());
      if (is_new) files.add(path.parent_path() / name);
    }
    for (const auto& [tensor, name] : weight_map) {
      const auto found = files.file_of_.find(tensor);
      if (found != files.file_of_.end() && found->second == places.at(name)) continue;
      throw InvalidArgument("tensor '" + printable(tensor) + "' is not in file '" +
                            printable(name) + "', where it should be");
    }
    return files;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("the index '" + path.string() + "' of a model: " + error.what());
  }
}

void SafetensorsFiles::add(const std::filesystem::path& path) {
  const SafetensorsReader& file = files_.emplace_back(path);
  for (const auto& [name, place] : file.tensors()) {
    const auto [first, is_new] = file_of_.emplace(name, files_.size() - 1);
    if (!is_new) {
      throw InvalidArgument("tensor '" + printable(name) + "' is in file '" +
                            files_[first->second].path().string() + "' and in file '" +
                            path.string() + "'");
    }
    tensors_.emplace(name, place);
  }
}

}  // namespace kolo::train
