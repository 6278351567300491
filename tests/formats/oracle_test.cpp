// Every format against the second quantiser: values, counters, page and pageless path, whole and cut-off blocks.
#include "tests/formats/oracle.hpp"

#include <gtest/gtest.h>

#include <random>

#include "tests/formats/page.hpp"

namespace mpfa::test {
namespace {

/// Tokens with ordinary values, ties, wide ranges, zero blocks, tiny and huge blocks, and one NaN and one Inf.
std::vector<float> make_tokens(std::int64_t tokens, std::int64_t d, unsigned seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> kind(0, 9), exponent(-20, 20), step(-40, 40);
  const float magnitudes[] = {1e-40F, 1e-37F, 6.3e-38F, 1e-20F, 1e-4F, 1e4F, 7e4F, 1e30F, 1e38F, 3.4e38F};
  std::vector<float> x(static_cast<std::size_t>(tokens * d));
  for (std::int64_t first = 0; first < tokens * d; first += 8) {
    const int k = kind(gen);
    const float magnitude = magnitudes[kind(gen)];
    for (std::int64_t i = first; i < std::min(first + 8, tokens * d); ++i) {
      float& v = x[static_cast<std::size_t>(i)];
      if (k < 5) v = normal(gen);
      if (k == 5) v = static_cast<float>(step(gen)) * .125F;
      if (k == 6) v = std::ldexp(normal(gen), exponent(gen));
      if (k == 7) v = seed % 2 == 0 ? 0.0F : -0.0F;
      if (k == 8 && seed % 3 == 0) v = std::clamp(normal(gen), -1.0F, 1.0F) * magnitude;
      if (k == 9) v = 1.75F;
    }
  }
  if (seed % 4 == 1) x[static_cast<std::size_t>(tokens * d / 3)] = std::nanf("");
  if (seed % 4 == 2) x[static_cast<std::size_t>(tokens * d / 2)] = -std::numeric_limits<float>::infinity();
  return x;
}

/// The oracle over all blocks of the tokens.
std::vector<float> expected(const BlockFormat& f, std::int64_t d, const std::vector<float>& x, float global,
                            QuantiseCounters& counters) {
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / d;
  const bool keys = f.axis == PackAxis::keys;
  const std::int64_t channels = keys ? 1 : f.block_channels == 0 ? d : f.block_channels;
  std::vector<float> out(x.size());
  for (std::int64_t t = 0; t < tokens; t += f.block_keys) {
    for (std::int64_t c = 0; c < d; c += channels) {
      std::vector<std::size_t> where;
      for (std::int64_t i = t; i < std::min(t + f.block_keys, tokens); ++i) {
        for (std::int64_t j = c; j < std::min(c + channels, d); ++j)
          where.push_back(static_cast<std::size_t>(i * d + j));
      }
      std::vector<float> block;
      for (const std::size_t i : where) block.push_back(x[i]);
      const oracle::Block b = oracle::quantise(f, block, global);
      for (std::size_t i = 0; i < where.size(); ++i) out[where[i]] = b.values[i];
      counters += b.counters;
    }
  }
  return out;
}

void expect_same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]) ? !std::isnan(got[i]) : got[i] != want[i]) {
      ADD_FAILURE() << what << ", element " << i << ": got " << got[i] << ", oracle " << want[i];
      return;
    }
  }
}

class Oracle : public testing::TestWithParam<std::string> {};

TEST_P(Oracle, ValuesAndCountersAgree) {
  const BlockFormat f = format(GetParam());
  const std::int64_t tokens = std::max<std::int64_t>(f.block_keys, 4);
  for (const std::int64_t d : {64, 128, 72, 50, 7, 1}) {
    for (unsigned seed = 0; seed < 12; ++seed) {
      const bool uses_global = f.scale == ScaleType::e4m3 || f.rule == ScaleRule::fixed;
      const float global = uses_global && seed % 2 == 1 ? .0123F : 1.0F;
      const std::vector<float> x = make_tokens(tokens, d, seed);
      QuantiseCounters counters;
      const std::vector<float> want = expected(f, d, x, global, counters);
      const std::string what = GetParam() + " d=" + std::to_string(d) + " seed=" + std::to_string(seed);

      Page page(f, d, 2 * tokens);
      page.write(tokens, x, global);
      expect_same(page.read(tokens, tokens, global), want, what);
      EXPECT_EQ(page.counters.saturated_elements, counters.saturated_elements) << what;
      EXPECT_EQ(page.counters.flushed_blocks, counters.flushed_blocks) << what;
      const std::int64_t nonfinite =
          f.scale == ScaleType::none ? (seed % 4 == 1 || seed % 4 == 2) : counters.nonfinite_blocks;
      EXPECT_EQ(page.counters.nonfinite_blocks, nonfinite) << what;

      if (global != 1.0F) continue;
      const std::int64_t some = tokens - (tokens > 4 ? 3 : 0);  // a last group that is not whole
      const std::vector<float> part(x.begin(), x.begin() + some * d);
      QuantiseCounters unused;
      std::vector<float> out(part.size());
      round_trip_tokens(f, d, some, part.data(), d, out.data(), d, nullptr);
      expect_same(out, expected(f, d, part, 1.0F, unused), what + " without a page");
    }
  }
}

std::vector<std::string> quantised_formats() {
  std::vector<std::string> names = format_names();
  std::erase_if(names, [](const std::string& n) { return n == "f32" || n == "bf16" || n == "fp16"; });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Formats, Oracle, testing::ValuesIn(quantised_formats()), [](const auto& name) {
  std::string text = name.param;
  std::replace(text.begin(), text.end(), '@', '_');
  return text;
});

}  // namespace
}  // namespace mpfa::test
