// Sends the elements of largest magnitude of each block.
//
// Payload of k elements: 2 bytes for the place and 4 for the value of each. The payload of a sum of
// n has n k elements. Error: elements that are not sent count as zero, so error feedback has to
// make up for it. NaN is larger than infinity, and that than all else, so both are sent. State:
// none.
#include <utility>

#include "compression/codecs.hpp"
#include "compression/sparse_payload.hpp"

namespace kolo::compression {
namespace {

class TopK final : public Codec {
 public:
  TopK(std::string name, double fraction) : name_(std::move(name)), fraction_(fraction) {}

  std::string_view name() const override { return name_; }
  std::size_t block() const override { return kSparseBlock; }
  double error_bound() const override { return 1.0; }
  std::size_t payload_bytes(std::size_t count, int terms) const override {
    return sparse_payload_bytes(count, kept_elements(count, fraction_, terms));
  }
  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    write_largest(values, kept_elements(values.size(), fraction_, terms), payload);
  }
  void add_decoded(const std::byte* payload, int terms, std::span<float> values) const override {
    add_sparse(payload, kept_elements(values.size(), fraction_, terms), values);
  }

 private:
  std::string name_;
  double fraction_;
};

}  // namespace

std::unique_ptr<const Codec> top_k(std::string name, double fraction) {
  return std::make_unique<TopK>(std::move(name), fraction);
}

}  // namespace kolo::compression
