#include "kolo/objects.hpp"

#include <cstdint>
#include <numeric>
#include <utility>

#include "runtime/api/collectives.hpp"

namespace kolo {
namespace {

OperationOptions with_name(OperationOptions options, std::string name) {
  options.name = std::move(name);
  return options;
}

}  // namespace

std::string broadcast_object(std::string bytes, int root, const OperationOptions& options) {
  const ProcessSet& set = runtime::set_or_world(options.process_set);
  const std::string name = options.name.empty() ? set.next_name("broadcast_object") : options.name;
  std::int64_t size = static_cast<std::int64_t>(bytes.size());
  broadcast(TensorView{&size, DType::Int64, {}, Device{}}, root,
            with_name(options, name + ".size"));
  bytes.resize(static_cast<std::size_t>(size));
  broadcast(TensorView{bytes.data(), DType::UInt8, {size}, Device{}}, root,
            with_name(options, name + ".bytes"));
  return bytes;
}

std::vector<std::string> allgather_object(const std::string& bytes,
                                          const OperationOptions& options) {
  const ProcessSet& set = runtime::set_or_world(options.process_set);
  const std::string name = options.name.empty() ? set.next_name("allgather_object") : options.name;
  std::string all;
  std::vector<std::int64_t> sizes;
  const auto allocate = [&](const std::vector<std::int64_t>& rows) -> void* {
    sizes = rows;
    all.resize(
        static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})));
    return all.data();
  };
  const TensorView view{const_cast<char*>(bytes.data()),  // it is only read
                        DType::UInt8,
                        {static_cast<std::int64_t>(bytes.size())},
                        Device{}};
  allgather(view, allocate, with_name(options, name));
  std::vector<std::string> objects;
  std::size_t start = 0;
  for (const std::int64_t size : sizes) {
    objects.push_back(all.substr(start, static_cast<std::size_t>(size)));
    start += static_cast<std::size_t>(size);
  }
  return objects;
}

}  // namespace kolo
