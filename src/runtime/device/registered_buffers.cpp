#include "runtime/device/registered_buffers.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/data/buffer_keeper.hpp"

namespace kolo::runtime {
namespace {

bool overlap(std::span<const std::byte> one, std::span<const std::byte> other) {
  const std::less<> before;
  return !one.empty() && !other.empty() && before(one.data(), other.data() + other.size()) &&
         before(other.data(), one.data() + one.size());
}

}  // namespace

RegisteredBuffers::~RegisteredBuffers() {
  for (const auto& [users, buffer] : buffers_) path_.communicator.deregister(buffer.registration);
}

void RegisteredBuffers::prepare(const Operations& batch) {
  is_on_buffers_ = false;
  if (!path_.staging.is_registered()) return;
  for (const auto& operation : batch) {
    // A joined rank's stand-in operation has the request, but no buffers.
    is_on_buffers_ |= operation->request.is_on_buffers();
    for (const BufferMemory& memory : operation->buffers) use(memory);
  }
}

void RegisteredBuffers::use(const BufferMemory& memory) {
  const auto* const keeper = std::get_deleter<BufferKeeper>(memory.owner);
  if (keeper == nullptr || memory.size_bytes == 0) return;
  const auto [found, is_new] = buffers_.try_emplace(memory.owner);
  if (!is_new) return;
  found->second = {keeper->memory,
                   {memory.data, memory.size_bytes},
                   path_.communicator.register_memory(memory.data, memory.size_bytes)};
}

bool RegisteredBuffers::have(std::span<const std::byte> memory) const {
  const auto contains = [&](const auto& entry) {
    const auto& [owner, whole, registration] = entry.second;
    return registration != nullptr && std::less_equal<>()(whole.data(), memory.data()) &&
           std::less_equal<>()(memory.data() + memory.size(), whole.data() + whole.size());
  };
  return memory.empty() || std::ranges::any_of(buffers_, contains);
}

RegisteredBuffers::Places RegisteredBuffers::places_for(std::span<const std::byte> input,
                                                        std::span<std::byte> output) {
  Places places{input.data(), output.data()};
  if (!is_on_buffers_) return places;
  if (overlap(input, output)) {  // one lies in the other
    const std::span<const std::byte> whole = input.size() > output.size() ? input : output;
    if (have(whole)) return places;
    const auto [staging] = path_.staging.take<1>({whole.size()});
    std::byte* const from = staging + (input.data() - whole.data());
    copy(path_, input, from);
    return {from, staging + (output.data() - whole.data())};
  }
  const bool has_input = have(input);
  const bool has_output = have(output);
  const auto [from, to] =
      path_.staging.take<2>({has_input ? 0 : input.size(), has_output ? 0 : output.size()});
  if (!has_input) {
    copy(path_, input, from);
    places.input = from;
  }
  if (!has_output) places.output = to;
  return places;
}

std::vector<std::shared_ptr<void>> RegisteredBuffers::take_unused() {
  std::vector<std::shared_ptr<void>> owners;
  for (auto it = buffers_.begin(); it != buffers_.end();) {
    if (!it->first.expired()) {
      ++it;
      continue;
    }
    path_.communicator.deregister(it->second.registration);
    owners.push_back(std::move(it->second.owner));
    it = buffers_.erase(it);
  }
  return owners;
}

std::vector<std::shared_ptr<void>> RegisteredBuffers::take_all() {
  std::vector<std::shared_ptr<void>> owners;
  for (auto& [users, buffer] : buffers_) owners.push_back(std::move(buffer.owner));
  buffers_.clear();
  return owners;
}

}  // namespace kolo::runtime
