// The frozen positions and signs of the sjlt (tests/sjlt_golden.json, made by tests/sjlt_reference.py) against the core
// header. A difference here is a broken promise: the bits change only with kSpecVersion.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "maskless/core/sjlt.h"

namespace maskless {
namespace {

TEST(SjltGolden, RowsAndSigns) {
  const nlohmann::json cases = nlohmann::json::parse(std::ifstream(MASKLESS_SOURCE_DIR "/tests/sjlt_golden.json"));
  ASSERT_EQ(cases.size(), 11u);
  for (const auto& c : cases) {
    const std::uint64_t seed = std::stoull(c.at("seed").get<std::string>());
    const std::uint64_t first = std::stoull(c.at("first").get<std::string>());
    const SjltGeometry g = sjlt_geometry(c.at("k"), c.at("nonzeros"));
    for (std::uint32_t block = 0; block < g.blocks; ++block) {
      const std::string signs = c.at("signs")[block];
      for (std::size_t i = 0; i < signs.size(); ++i) {
        const SjltEntry e = sjlt_entry(seed, c.at("stream"), g, block, first + i);
        ASSERT_EQ(e.row, c.at("rows")[block][i].get<std::uint32_t>()) << c.at("k") << " block " << block << " + " << i;
        ASSERT_EQ(e.minus ? '-' : '+', signs[i]) << c.at("k") << " block " << block << " + " << i;
      }
    }
  }
}

TEST(SjltGolden, EveryTileIsAPermutation) {
  for (std::uint32_t rows : {1u,  2u,  3u,  4u,   5u,   7u,   8u,    15u,   16u,   31u,   33u,   63u,
                             64u, 65u, 72u, 100u, 127u, 128u, 1000u, 1023u, 1024u, 1025u, 4096u, 5000u}) {
    const SjltGeometry g = sjlt_geometry(rows, 1);
    const std::uint32_t width = 1u << g.tile_bits;
    for (std::uint64_t tile : {0ull, 1ull, 77ull, 1ull << 33}) {
      const SjltKey key = sjlt_key(3, 1, g, 0, tile);
      ASSERT_LT(key.window, rows);
      std::vector<int> columns(width), hit(rows);
      for (std::uint32_t slot = 0; slot < width; ++slot) {
        const std::uint32_t column = sjlt_column(g, key, slot);
        ASSERT_LT(column, width) << rows;
        ASSERT_EQ(sjlt_slot(g, key, column), slot) << rows;
        ++columns[column];
        const std::uint32_t row = sjlt_row_of_slot(key, rows, slot);
        ASSERT_LT(row, rows);
        ASSERT_EQ(sjlt_slot_of_row(key, rows, row), slot);
        ++hit[row];
      }
      ASSERT_EQ(std::count(columns.begin(), columns.end(), 1), width) << rows;
      ASSERT_EQ(*std::max_element(hit.begin(), hit.end()), 1) << rows;
      if (g.low_bits == 3)  // neighbouring rows read from different banks
        for (std::uint32_t slot = 0; slot < width; slot += 8) {
          unsigned seen = 0;
          for (std::uint32_t i = 0; i < 8; ++i) seen |= 1u << (sjlt_column(g, key, slot + i) & 7);
          ASSERT_EQ(seen, 255u);
        }
    }
  }
}

}  // namespace
}  // namespace maskless
