// Sends the elements of largest magnitude of each block.
//
// Payload of k elements: 2 bytes for the place and 4 for the value of each. The payload of a sum of
// n has n k elements. Error: elements that are not sent count as zero, so error feedback is needed.
// NaN counts as larger than infinity, and infinity as larger than all else, so both are sent.
// State: none.
#include <utility>

#include "compression/codecs.hpp"
#include "compression/sparse_payload.hpp"

namespace kolo::compression {
namespace {

class TopK final : public BuiltInCodec {
 public:
  TopK(std::string name, double fraction)
      : BuiltInCodec({.kind = base::CodecKind::TopK, .fraction = fraction}),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  double error_bound() const override { return 1.0; }
  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    write_largest(values, format().kept(values.size(), terms), payload);
  }
  void add_decoded(const std::byte* payload, int terms, std::span<float> values) const override {
    add_sparse(payload, format().kept(values.size(), terms), values);
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<const Codec> top_k(std::string name, double fraction) {
  return std::make_unique<TopK>(std::move(name), fraction);
}

}  // namespace kolo::compression
