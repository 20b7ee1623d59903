#include "comm/self_world.hpp"

#include <algorithm>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "comm/gpu/cuda_gpus.hpp"
#include "comm/message_bounds.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// Messages of a rank to itself: copied by `send`, delivered to the matching receive.
class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    check_message(*this, data.size(), destination, tag);
    bytes_sent_ += data.size();
    messages_.push_back({tag, {data.begin(), data.end()}});
    return {};
  }

  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    check_message(*this, data.size(), source, tag);
    receives_.push_back({++last_token_, tag, data});
    return {*this, last_token_};
  }

  std::optional<Envelope> probe(int tag) override {
    check_message(*this, 0, 0, tag);
    auto waiting = std::count_if(receives_.begin(), receives_.end(),
                                 [&](const Receive& receive) { return receive.tag == tag; });
    for (const Message& message : messages_) {
      if (message.tag == tag && waiting-- == 0) return Envelope{0, message.data.size()};
    }
    return std::nullopt;
  }

  UnderWay give_up_receives() override {
    receives_.clear();
    return {};
  }

 private:
  struct Message {
    int tag;
    std::vector<std::byte> data;
  };
  struct Receive {
    std::uint64_t token;
    int tag;
    std::span<std::byte> data;
  };

  /// The n-th receive under a tag gets the n-th message under it.
  bool test(std::uint64_t token) override {
    const auto receive = find(token);
    auto before = std::count_if(receives_.begin(), receive,
                                [&](const Receive& other) { return other.tag == receive->tag; });
    const auto message = std::find_if(
        messages_.begin(), messages_.end(),
        [&](const Message& candidate) { return candidate.tag == receive->tag && before-- == 0; });
    if (message == messages_.end()) return false;
    const std::vector<std::byte> data = std::move(message->data);
    const std::span<std::byte> place = receive->data;
    messages_.erase(message);
    receives_.erase(receive);
    if (data.size() != place.size()) {
      throw BackendError("receive from rank 0: expected " + std::to_string(place.size()) +
                         " bytes, got " + std::to_string(data.size()));
    }
    if (!data.empty()) std::memcpy(place.data(), data.data(), data.size());
    return true;
  }

  void abandon(std::uint64_t token) noexcept override {
    if (const auto receive = find(token); receive != receives_.end()) receives_.erase(receive);
  }

  std::list<Receive>::iterator find(std::uint64_t token) {
    return std::find_if(receives_.begin(), receives_.end(),
                        [&](const Receive& receive) { return receive.token == token; });
  }

  std::list<Message> messages_;
  std::list<Receive> receives_;
  std::uint64_t last_token_ = 0;
};

/// The memory of a window; a single rank needs no shared memory.
struct SelfMemory {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  SharedWindow::StageCounter stage_counter{0};
  std::vector<Line> lines;
};

}  // namespace

std::unique_ptr<Communicator> SelfWorld::make_communicator(std::span<const int>, int) {
  return std::make_unique<SelfCommunicator>();
}

Task SelfWorld::make_window(Communicator&, int, std::size_t segment_bytes,
                            std::shared_ptr<SharedWindow>& window) {
  try {
    const auto memory = std::make_shared<SelfMemory>();
    memory->lines.resize((segment_bytes + sizeof(SelfMemory::Line) - 1) / sizeof(SelfMemory::Line));
    window = std::make_shared<SharedWindow>(
        0,
        std::vector<SharedWindow::Segment>{
            {&memory->stage_counter,
             {reinterpret_cast<std::byte*>(memory->lines.data()), segment_bytes}}},
        memory);
  } catch (const std::exception&) {  // bad_alloc or length_error
    throw BackendError("no memory for a window of " + std::to_string(segment_bytes) + " bytes");
  }
  co_return;
}

Gpus* SelfWorld::gpus() { return cuda_gpus(); }

}  // namespace kolo::comm
