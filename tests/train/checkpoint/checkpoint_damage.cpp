#include "train/checkpoint/checkpoint_damage.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/signed_index.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace kolo::test {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// Paths of all values nested in a JSON value.
void list_places(const Json& value, const std::string& path, std::vector<std::string>& places) {
  if (!value.is_structured()) return;
  const Json flat = value.flatten();
  for (const auto& [key, inner] : flat.items()) {
    // Includes inner nodes: /a/b/c yields /a, /a/b and /a/b/c.
    for (std::size_t end = key.find('/', 1);; end = key.find('/', end + 1)) {
      places.push_back(path + key.substr(0, end));
      if (end == std::string::npos) break;
    }
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
}

/// Values of all JSON types, and numbers that are not valid counts.
std::vector<Json> strange_values() {
  return {nullptr,
          true,
          "text",
          "\x1b[2J",
          -1,
          -0.5,
          1e300,
          std::numeric_limits<std::uint64_t>::max(),
          std::numeric_limits<std::int64_t>::max(),
          Json::array(),
          Json::object(),
          Json::array({1, 2, 3}),
          Json{{"a", 1}}};
}

/// Whether `after` is of a kind that is valid here: then the checkpoint is different, but not
/// invalid.
bool could_be(const Json& before, const Json& after) {
  if (before.is_boolean() || before.is_string()) return before.type() == after.type();
  if (before.is_number_float()) return after.is_number();
  if (before.is_number()) return after.is_number_unsigned();
  return before == after;
}

}  // namespace

std::size_t CheckpointDamage::below(std::size_t end) {
  return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_);
}

template <class Container>
auto& CheckpointDamage::any(Container& container) {
  return *std::next(container.begin(), static_cast<std::ptrdiff_t>(below(container.size())));
}

fs::path CheckpointDamage::any_file(const fs::path& checkpoint) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return any(files);
}

/// Changes some bytes of a file.
std::string CheckpointDamage::damage_file(const fs::path& checkpoint) {
  const fs::path file = any_file(checkpoint);
  std::string bytes = read_file(file);
  const std::string before = bytes;
  while (bytes == before) {
    const std::size_t place = below(bytes.size());
    const std::size_t kind = below(5);
    if (kind == 0) bytes.insert(place, 1 + below(9), static_cast<char>(below(256)));
    if (kind == 1) bytes.erase(place, 1 + below(9));
    if (kind == 2) std::swap(bytes[place], bytes[below(bytes.size())]);
    if (kind >= 3) bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
  }
  write_file(file, bytes);
  return "bytes of " + file.filename().string();
}

std::string CheckpointDamage::cut_file(const fs::path& checkpoint) {
  const fs::path file = any_file(checkpoint);
  const std::size_t kind = below(4);
  if (kind < 2) {
    fs::resize_file(file, kind == 0 ? 0 : below(fs::file_size(file)));
    return file.filename().string() + " cut";
  }
  fs::remove(file);
  if (kind == 3) fs::create_directory(file);
  return file.filename().string() + (kind == 3 ? " is a folder" : " removed");
}

/// Replaces a file by that of another checkpoint or another rank.
std::string CheckpointDamage::swap_file(const fs::path& checkpoint) {
  const fs::path file = any_file(checkpoint);
  fs::path from = other_ / file.filename();
  if (below(2) == 0) {
    const fs::path sibling = any_file(checkpoint);
    if (sibling != file) from = sibling;
  }
  const std::string bytes = read_file(from);
  write_file(file, bytes);
  return file.filename().string() + " replaced by " + from.string();
}

/// Changes a tensor's dtype, shape, name or data; the size of its data fits the shape.
std::string CheckpointDamage::forge_tensor(CheckpointImage& image) {
  auto& [name, tensor] = any(image.tensors);
  const std::string what = "tensor " + name + " ";
  const std::size_t kind = below(5);
  if (kind == 0) {
    const auto type = static_cast<DType>(below(kDTypeCount));
    tensor.dtype = tensor.dtype == type ? DType::Bool : type;
  } else if (kind == 1) {
    tensor.shape.push_back(static_cast<std::int64_t>(below(4)));
  } else if (kind == 2 && !tensor.shape.empty()) {
    any(tensor.shape) += 1 + static_cast<std::int64_t>(below(1000));
  } else if (kind == 3 && !tensor.shape.empty()) {
    any(tensor.shape) = 0;
  } else if (!name.starts_with("random.")) {
    auto moved = image.tensors.extract(name);
    moved.key() += below(2) == 0 ? "x" : std::string("\x1b[2J\0", 5);
    image.tensors.insert(std::move(moved));
    return what + "renamed";
  } else {
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xff});
    return what + "filled";
  }
  const std::int64_t count = checkpoints::elements_of(tensor.shape).value();
  tensor.bytes.resize(static_cast<std::size_t>(checkpoints::bytes_of(tensor.dtype, count)));
  return what + "is " + checkpoints::text_of(tensor.dtype, tensor.shape);
}

/// Replaces a value of the details.
std::string CheckpointDamage::forge_details(CheckpointImage& image) {
  std::vector<std::string> places;
  list_places(image.details, "", places);
  for (;;) {
    const Json::json_pointer place(any(places));
    const Json before = image.details.at(place);
    const Json after = [&]() -> Json {
      std::vector<Json> values = strange_values();
      return any(values);
    }();
    // An empty list or object may be valid here.
    if (could_be(before, after) || (after.empty() && before.is_structured())) continue;
    image.details.at(place) = after;
    return "details " + place.to_string() + " = " + after.dump();
  }
}

/// Replaces a value of the index, with the right checksum.
std::string CheckpointDamage::forge_index(const fs::path& checkpoint) {
  Json index = Json::parse(read_file(checkpoint / "index.json"));
  std::vector<std::string> places;
  list_places(index["files"], "/files", places);
  list_places(index["tensors"], "/tensors", places);
  const Json::json_pointer place(any(places));
  std::vector<Json> values = strange_values();
  const Json before = index.at(place);
  Json after = before;
  while (after == before) {
    after = before.is_number_unsigned() && below(2) == 0
                ? Json(before.get<std::uint64_t>() + (1ULL << below(63)))
                : any(values);
  }
  index.at(place) = after;
  write_file(checkpoint / "index.json", signed_index(index));
  return "index " + place.to_string() + " = " + after.dump();
}

std::string CheckpointDamage::write(const fs::path& folder, std::uint64_t seed) {
  random_.seed(seed);
  const std::size_t kind = below(10);
  std::string what;
  if (kind < 5) {
    CheckpointImage image = good_;
    what = kind < 3 ? forge_tensor(image) : forge_details(image);
    write_image(folder, image);
    return what;
  }
  if (Runtime::current().rank() == 0) {
    const fs::path checkpoint = folder / "checkpoint-00000001";
    fs::create_directories(folder);
    fs::copy(files_, checkpoint);
    if (kind == 5) what = damage_file(checkpoint);
    if (kind == 6) what = cut_file(checkpoint);
    if (kind == 7) what = swap_file(checkpoint);
    if (kind >= 8) what = forge_index(checkpoint);
  }
  barrier();
  return what;
}

}  // namespace kolo::test
