#include <cstring>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "comm/shared_memory.hpp"
#include "kolo/error.hpp"
#include "support/errors.hpp"

namespace kolo::comm::shared_segment_test {

constexpr std::size_t kBytes = 8192;
constexpr std::size_t kPlace = 4096 + 17;

void expect_refused(const SegmentAddress& address) {
  const std::string text =
      test::text_thrown_by<BackendError>([&] { const Mapping mapping = open_segment(address); });
  test::expect_contains(text, "is not the segment of that rank");
  test::expect_contains(text, "/fd/" + std::to_string(address.fd));
}

TEST(SharedSegmentTest, Mappings_ShowTheSameMemory) {
  const NewSegment segment = make_segment(kBytes);
  const Mapping first = open_segment(segment.address);
  const Mapping second = open_segment(segment.address);
  first.data()[kPlace] = std::byte{5};
  EXPECT_EQ(second.data()[kPlace], std::byte{5});
  EXPECT_NE(first.data(), second.data());
}

// In another PID namespace, the path to the peer's segment leads to this rank's own.
TEST(SharedSegmentTest, PathToAnotherSegment_IsRejected) {
  const NewSegment meant = make_segment(kBytes);
  const NewSegment own = make_segment(kBytes);
  SegmentAddress address = meant.address;
  address.fd = own.address.fd;
  expect_refused(address);
}

// Files of another machine may have the same numbers.
TEST(SharedSegmentTest, SegmentWithAnotherKey_IsRejected) {
  const NewSegment segment = make_segment(kBytes);
  for (std::uint64_t& word : SegmentAddress(segment.address).key) EXPECT_NE(word, 0u);
  SegmentAddress address = segment.address;
  address.key[1] ^= 1;
  expect_refused(address);
}

TEST(SharedSegmentTest, SegmentOfAnotherSizeOrFileSystem_IsRejected) {
  const NewSegment segment = make_segment(kBytes);
  SegmentAddress longer = segment.address;
  longer.size_bytes += 4096;
  expect_refused(longer);
  SegmentAddress elsewhere = segment.address;
  elsewhere.device ^= 1;
  expect_refused(elsewhere);
}

TEST(SharedSegmentTest, MissingOrSpecialFile_IsRejected) {
  const NewSegment segment = make_segment(kBytes);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  SegmentAddress pipe = segment.address;
  pipe.fd = ends[0];
  expect_refused(pipe);
  ::close(ends[0]);
  ::close(ends[1]);
  const std::string text =
      test::text_thrown_by<BackendError>([&] { const Mapping mapping = open_segment(pipe); });
  test::expect_contains(text, "No such file");
}

TEST(SharedSegmentTest, Keys_Differ) {
  EXPECT_NE(make_segment(kBytes).address.key, make_segment(kBytes).address.key);
}

}  // namespace kolo::comm::shared_segment_test
