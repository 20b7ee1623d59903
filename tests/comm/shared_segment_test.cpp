#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/shared_heap.hpp"
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

/// Of one rank, in a segment of `pages` pages.
struct OneHeap {
  explicit OneHeap(std::size_t pages) {
    NewSegment segment = make_segment((1 + pages) * page_bytes(), page_bytes());
    fd = segment.file.get();
    inode = segment.address.inode;
    heap = std::make_shared<SharedHeap>(0, std::move(segment.file), std::vector{segment.address});
  }

  std::size_t place(const std::shared_ptr<std::byte>& memory) const {
    return heap->offset_of(std::span(memory.get(), 1)).value() / page_bytes();
  }
  /// Without that of the first page.
  std::size_t reserved_pages() const {
    struct stat status{};
    EXPECT_EQ(::fstat(fd, &status), 0);
    return static_cast<std::size_t>(status.st_blocks) * 512 / page_bytes() - 1;
  }

  bool is_mapped() const {
    std::ifstream mappings("/proc/self/maps");
    const std::string all(std::istreambuf_iterator<char>(mappings), {});
    return all.find(" " + std::to_string(inode) + " ") != std::string::npos;
  }

  int fd = -1;
  std::uint64_t inode = 0;
  std::shared_ptr<SharedHeap> heap;
};

TEST(SharedHeapTest, Segments_AreMappedWhenMemoryIsGivenOut) {
  const OneHeap one(2);
  EXPECT_FALSE(one.is_mapped());
  EXPECT_NE(one.heap->allocate(1), nullptr);
  EXPECT_TRUE(one.is_mapped());
}

TEST(SharedHeapTest, FreedMemory_IsGivenOutAgain) {
  const OneHeap one(100);
  const std::size_t page = page_bytes();
  auto first = one.heap->allocate(3 * page);
  auto second = one.heap->allocate(1);
  const auto third = one.heap->allocate(page + 1);
  EXPECT_EQ(one.place(first), 0u);
  EXPECT_EQ(one.place(second), 3u);
  EXPECT_EQ(one.place(third), 4u);
  EXPECT_EQ(one.reserved_pages(), 6u);
  first.reset();
  EXPECT_EQ(one.place(one.heap->allocate(2 * page)), 0u);
  second.reset();  // adjacent to it
  first = one.heap->allocate(4 * page);
  EXPECT_EQ(one.place(first), 0u);
  EXPECT_EQ(one.reserved_pages(), 6u);
  const auto last = one.heap->allocate(page);
  EXPECT_EQ(one.place(last), 6u);
  first.reset();
  EXPECT_EQ(one.place(one.heap->allocate(5 * page)), 7u);
  EXPECT_EQ(one.place(one.heap->allocate(9 * page)), 7u);  // longer than what is free at the end
  EXPECT_EQ(one.reserved_pages(), 16u);
}

TEST(SharedHeapTest, MemoryThatDoesNotFit_IsRefused) {
  const OneHeap one(4);
  EXPECT_EQ(one.heap->allocate(static_cast<std::size_t>(-1)), nullptr);
  const auto all = one.heap->allocate(4 * page_bytes());
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(one.heap->allocate(1), nullptr);
}

TEST(SharedHeapTest, OtherMemory_HasNoOffset) {
  const OneHeap one(4);
  const auto memory = one.heap->allocate(4 * page_bytes());
  const std::byte* const begin = memory.get();
  EXPECT_EQ(one.heap->offset_of({begin + 5, 7}), 5u);
  EXPECT_EQ(one.heap->offset_of({begin, 4 * page_bytes()}), 0u);
  EXPECT_FALSE(one.heap->offset_of({begin + 1, 4 * page_bytes()}));
  EXPECT_FALSE(one.heap->offset_of({begin - 1, 2}));
  const std::byte elsewhere{};
  EXPECT_FALSE(one.heap->offset_of({&elsewhere, 1}));
  EXPECT_FALSE(one.heap->offset_of({}));
}

TEST(SharedHeapTest, Memory_OutlivesWhoMadeTheHeap) {
  std::shared_ptr<std::byte> memory;
  {
    const OneHeap one(2);
    memory = one.heap->allocate(1);
  }
  *memory = std::byte{3};
  EXPECT_EQ(*memory, std::byte{3});
}

}  // namespace kolo::comm::shared_segment_test
