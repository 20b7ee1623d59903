// Writes a checkpoint and a safetensors file with tensors of all dtypes, for python_test.py, and
// reads files that it has written.
#include <exception>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"

namespace {

using namespace kolo;
using namespace kolo::test;

constexpr const char* kUsage = R"(usage:
  checkpoint_writer save <folder> <number>
      saves checkpoint <number>, keeps one
  checkpoint_writer export <file> <number>
      writes the tensors of checkpoint <number> into one safetensors file
  checkpoint_writer compare <index> <number>
      compares the files of a model.safetensors.index.json with checkpoint <number>
)";

void save(Runtime& runtime, const std::string& folder, unsigned number) {
  const Slices own = own_slices(large_model(), runtime.size(), runtime.rank(), number);
  checkpoints::NewCheckpoint(folder, own.slices, {{"number", number}}, /*keep_last=*/1,
                             checkpoints::Ranks())
      .write();
}

void write_one_file(const std::string& path, unsigned number) {
  std::vector<checkpoints::SafetensorsTensor> list;
  for (const TestTensor& tensor : large_model()) {
    list.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  checkpoints::SafetensorsWriter writer(path, list);
  for (const TestTensor& tensor : large_model()) {
    const Bytes bytes = contents(tensor, number);
    writer.append(bytes.data(), bytes.size());
  }
  writer.close();
}

void compare(const std::string& path, unsigned number) {
  const auto files = checkpoints::SafetensorsFiles::of_index(path);
  std::size_t compared = 0;
  for (const TestTensor& tensor : large_model()) {
    const auto found = files.tensors().find(tensor.name);
    if (found == files.tensors().end()) continue;
    Bytes bytes(static_cast<std::size_t>(tensor.size()));
    files.read(tensor.name, found->second.dtype.value(), 0,
               std::as_writable_bytes(std::span(bytes)));
    if (bytes != contents(tensor, number)) throw InvalidArgument(tensor.name + " differs");
    ++compared;
  }
  if (compared != files.tensors().size()) throw InvalidArgument("there are other tensors");
  std::cout << compared << " tensors of " << path << " are right\n";
}

int run(const std::vector<std::string>& arguments) {
  const std::size_t count = arguments.size();
  if (count != 3 ||
      (arguments[0] != "save" && arguments[0] != "export" && arguments[0] != "compare")) {
    std::cerr << kUsage;
    return 2;
  }
  const auto number = static_cast<unsigned>(std::stoul(arguments[2]));
  if (arguments[0] == "compare") {
    compare(arguments[1], number);
    return 0;
  }
  Runtime runtime;
  if (arguments[0] == "save") save(runtime, arguments[1], number);
  if (arguments[0] == "export") write_one_file(arguments[1], number);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "checkpoint_writer: " << error.what() << "\n";
    return 1;
  }
}
