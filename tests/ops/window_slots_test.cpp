// The place of chunks in a window: slots inside their segment, parts inside their slot, each
// element exactly once.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "contract/ranks.hpp"
#include "kolo/error.hpp"
#include "ops/steps/reduction_plan.hpp"
#include "ops/steps/windows.hpp"

namespace kolo::ops::window_slots_test {

constexpr std::size_t kLine = Shares::kLineBytes;

TEST(WindowSlotsTest, Slots_FillTheirSegmentAndNoMore) {
  const std::vector<WindowSlots::Layout> layouts{
      {.count = 1}, {.count = 2}, {.count = 3, .min_bytes = 3 * kLine, .header_bytes = 2 * kLine}};
  for (std::size_t segment_bytes = kLine; segment_bytes < 3000; segment_bytes += 60) {
    test::run_on_ranks(2, segment_bytes, 1, [&](const test::Rank& rank) {
      for (const WindowSlots::Layout& layout : layouts) {
        const std::size_t least = layout.header_bytes + layout.count * layout.min_bytes;
        if (segment_bytes < least) {
          EXPECT_THROW(WindowSlots(rank.window, kLine, layout, "test"), InvalidArgument);
          continue;
        }
        const WindowSlots slots(rank.window, 1 << 20, layout, "test");
        EXPECT_GE(slots.bytes(), layout.min_bytes);
        EXPECT_EQ(slots.bytes() % kLine, 0u);
        const std::size_t used = layout.header_bytes + layout.count * slots.bytes();
        EXPECT_LE(used, segment_bytes);
        EXPECT_GT(used + layout.count * kLine, segment_bytes) << "a line more would fit";
        for (int peer = 0; peer < 2; ++peer) {
          for (std::size_t chunk = 0; chunk < 2 * layout.count; ++chunk) {
            const std::byte* first = rank.window.segment(peer).data() + layout.header_bytes;
            EXPECT_EQ(slots.of(peer, chunk), first + chunk % layout.count * slots.bytes());
          }
        }
        EXPECT_EQ(WindowSlots(rank.window, kLine, layout, "test").bytes(), layout.min_bytes);
      }
    });
  }
}

TEST(SharesTest, Parts_CoverEveryPieceOnceInPlacesOfTheirOwn) {
  for (const std::size_t element : {1u, 2u, 4u, 8u}) {
    for (const std::vector<std::size_t>& lengths : {std::vector<std::size_t>{0},
                                                    {1},
                                                    {64, 65, 63},
                                                    {0, 1000, 0, 3},
                                                    {700, 699, 1, 0, 5000}}) {
      std::vector<Range> pieces = ranges_of(lengths);
      for (Range& piece : pieces) piece.begin += 17;  // they may start anywhere
      const std::size_t least = Shares::min_slot_bytes(pieces.size());
      for (std::size_t slot = least; slot < least + 20 * kLine; slot += kLine) {
        SCOPED_TRACE(testing::PrintToString(lengths) + " in " + std::to_string(slot));
        const Shares shares(pieces, element, slot);
        std::vector<std::size_t> ends;
        for (const Range& piece : pieces) ends.push_back(piece.begin);
        for (std::size_t chunk = 0; chunk < shares.chunks(); ++chunk) {
          std::size_t free = 0;  // the slot is used up to here
          for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
            const Range part = shares.part(static_cast<int>(rank), chunk);
            const std::size_t place = shares.place(static_cast<int>(rank));
            EXPECT_EQ(part.begin, ends[rank]);
            EXPECT_EQ(place % kLine, 0u);
            EXPECT_GE(place, free);
            ends[rank] += part.length;
            free = place + part.length * element;
          }
          EXPECT_LE(free, slot);
        }
        for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
          EXPECT_EQ(ends[rank], pieces[rank].begin + lengths[rank]);
        }
      }
    }
  }
}

TEST(SharesTest, WhatFits_IsOneChunk) {
  const std::size_t line = kLine / sizeof(float);
  const std::vector<Range> pieces = ranges_of(std::vector<std::size_t>{3 * line, line + 1, 0});
  EXPECT_EQ(Shares(pieces, sizeof(float), 5 * kLine).chunks(), 1u);
  EXPECT_EQ(Shares(pieces, sizeof(float), 4 * kLine).chunks(), 5u);
  EXPECT_EQ(Shares(ranges_of(std::vector<std::size_t>{0, 0}), 4, 5 * kLine).chunks(), 0u);
}

}  // namespace kolo::ops::window_slots_test
