#include "cpu/integer_tile.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cpu/expand.hpp"
#include "cpu/integer_values.hpp"
#include "formats/dispatch.hpp"

namespace mpfa::cpu {
namespace {

constexpr std::int64_t kLeastBlock = 16;

IntegerShape shape_of(const IntegerOperand& k, std::int64_t width) {
  return {k.channels, k.block, width, k.form.type};
}

/// Words of a whole panel of queries, whatever its blocks are.
std::int64_t panel_words(const AttentionProblem& p) {
  return IntegerShape{padded(p.head_dim), kLeastBlock, kPanel, Integers::signed_words}.size();
}

std::int64_t factor_floats(std::int64_t channels) {
  return kKeyTile * padded(channels) / kLeastBlock;
}

std::int64_t unit_floats(const AttentionProblem& p) {
  return padded(p.head_dim_v) / kLeastBlock * 2 * kPanel;
}

/// Levels of queries that the recipe rounds to whole multiples of a factor of their block; 0 for others. Of e2m1 the
/// largest of a block may be 0.5, 1, 1.5, 2, 3, 4 or 6: 24 halves are a multiple of all.
int levels_of(const Recipe& r) {
  if (r.q_terms != 1 || r.q_centre == QCentre::block || r.q.axis != PackAxis::head_dim || r.q.block_keys != 1) return 0;
  if (r.q.element == Element::int8 && r.q.scale == ScaleType::f32 && r.q.rule == ScaleRule::amax) return 127;
  return r.q.element == Element::e2m1 ? 24 : 0;
}

/// True when 16 bits of a query, relative to the largest of a block, are as good as what becomes of it: it has 16 bits
/// itself, and so have probabilities. Where these have coarser steps, a score that moves a little may move one by a
/// whole step. Sums of a block have 31 bits.
bool takes_words(const Recipe& r, const IntegerOperand& k) {
  const bool has_16 = r.q.element == Element::bf16 || r.q.element == Element::f16;
  return has_16 && r.p == PMode::bf16 && k.form.most * static_cast<float>(k.block) < 0x1p16F;
}

/// True when weights of 15 bits are as good as P: it has 16 bits or fewer, and 8 where V has 16 bits itself.
bool takes_weights(const Recipe& r, const IntegerOperand& v) {
  if (v.form.code == formats::WordCode::e4m3) return r.p != PMode::f32 && r.p != PMode::bf16;
  return r.p != PMode::f32;
}

bool choose(const BlockFormat& format, std::int64_t channels, Integers type, IntegerOperand& operand) {
  const formats::WordFormat w = formats::word_format(format, channels);
  operand.channels = channels;
  operand.block = w.block;
  return integer_form(w, channels, type, operand.form);
}

/// Blocks of 16 channels become one where factors of 4 bits leave elements exact.
void fold(const BlockFormat& format, IntegerOperand& v) {
  v.folded = v.block == kLeastBlock && format.scale == ScaleType::e4m3;
  if (!v.folded) return;
  v.block = v.channels;
  v.limit = fold_limit(v.form.most);
  v.form.most *= v.limit;
}

/// Integers and factors [kKeyTile, blocks] of keys [first + c.begin, first + c.end). Bits of the result: keys with a
/// code that is a NaN.
std::uint64_t gather(const Task& task, std::int64_t first, KeyRange c, bool is_k, std::int64_t blocks,
                     const IntegerOperand& to, void* out) {
  const CacheView& cache = task.tensors->cache;
  const OperandPages& pages = is_k ? cache.k : cache.v;
  const std::int64_t row_bytes = shape_of(to, kPanel).bytes() * to.channels;
  float minima[kKeyTile];
  std::uint64_t broken = 0;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = pages.page(run.page, task.kv_head);
    broken |= expand_integers(to.form, page.data + run.slot * page.data_row_stride, page.data_row_stride, run.count,
                              to.channels, static_cast<std::byte*>(out) + run.column * row_bytes)
              << run.column;
    formats::read_factors(is_k ? cache.k_format : cache.v_format, to.channels, run.slot, run.count, page,
                          pages.global_scale(task.kv_head), to.factors + run.column * blocks, minima);
  });
  return broken;
}

/// Least and largest of n floats, as bits: a loop for vectors, with what is negative or a NaN above all numbers.
struct Range {
  std::uint32_t least_bits, most_bits;
  float most;
  [[nodiscard]] bool within(float least, float largest) const {
    return least_bits >= std::bit_cast<std::uint32_t>(least) && most_bits <= std::bit_cast<std::uint32_t>(largest);
  }
};
Range range_of(const float* x, std::int64_t n) {
  std::uint32_t least = ~0U, most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    least = std::min(least, bits), most = std::max(most, bits);
  }
  return {least, most, std::bit_cast<float>(most)};
}

/// Keys of c with a factor that weights do not take become broken, and their factors 0: those out of range, and those
/// below `ratio` of the key's largest.
void mark_broken_keys(KeyRange c, std::int64_t blocks, float ratio, IntegerTile& tile) {
  for (std::int64_t j = c.begin; j < c.end; ++j) {
    float* const factors = tile.v.factors + j * blocks;
    const float least = std::max(kLeastFactor, *std::max_element(factors, factors + blocks) * ratio);
    bool broken = false;
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (factors[b] == 0.0F) factors[b] = 0.0F;  // not -0: weights are compared as bits
      broken |= factors[b] != 0.0F && !(factors[b] >= least && factors[b] <= kMostFactor);
    }
    if (broken) tile.broken |= std::uint64_t{1} << j;
  }
  for (std::uint64_t rest = tile.broken; rest != 0; rest &= rest - 1) {
    std::fill_n(tile.v.factors + std::countr_zero(rest) * blocks, blocks, 0.0F);
  }
}

}  // namespace

std::int64_t integer_tile_floats(const AttentionProblem& p) {
  const std::int64_t d = padded(p.head_dim), dv = padded(p.head_dim_v);
  return kRowBlock / kPanel * panel_words(p) + kKeyTile * (d + 2 * dv) / 2 + factor_floats(d) + factor_floats(dv) +
         kKeyPairs * kPanel + unit_floats(p);
}

void lay_out_integers(const AttentionProblem& p, float* memory, IntegerTile& tile) {
  const std::int64_t d = padded(p.head_dim), dv = padded(p.head_dim_v);
  const auto take = [&](std::int64_t floats) {
    float* const at = memory;
    memory += floats;
    return at;
  };
  tile.queries = reinterpret_cast<std::int32_t*>(take(kRowBlock / kPanel * panel_words(p)));
  tile.k.integers = reinterpret_cast<std::byte*>(take(kKeyTile * d / 2));
  tile.v.integers = reinterpret_cast<std::byte*>(take(kKeyTile * dv / 2));
  tile.v_rows = reinterpret_cast<std::int16_t*>(take(kKeyTile * dv / 2));
  tile.k.factors = take(factor_floats(d));
  tile.v.factors = take(factor_floats(dv));
  tile.weights = reinterpret_cast<std::uint32_t*>(take(kKeyPairs * kPanel));
  tile.units = take(unit_floats(p));
}

void choose_integers(const Task& task, IntegerTile& tile) {
  const CacheView& cache = task.tensors->cache;
  const Recipe& r = task.problem->recipe;
  IntegerOperand &k = tile.k, &v = tile.v;
  tile.levels = levels_of(r);
  tile.any_special = false;
  if (tile.levels != 0) {
    k.taken = choose(cache.k_format, cache.head_dim, Integers::unsigned_bytes, k) &&
              formats::channels_per_block(r.q, cache.head_dim) == k.block;
  } else {
    tile.levels = 32767;
    k.taken = choose(cache.k_format, cache.head_dim, Integers::signed_words, k) && takes_words(r, k);
  }
  const bool affine_v = cache.sequences != nullptr && cache.sequences[task.sequence].v_alpha != nullptr;
  v.taken = choose(cache.v_format, cache.head_dim_v, Integers::signed_words, v) && takes_weights(r, v) && !affine_v;
  if (v.taken) fold(cache.v_format, v);
}

void pack_panel(const AttentionProblem& problem, std::int64_t panel, std::int64_t count, std::int64_t width,
                const float* q, IntegerTile& tile) {
  tile.special[panel] = pack_integer_panel(tile.k.form, shape_of(tile.k, width), tile.levels, count, q,
                                           tile.queries + panel * panel_words(problem));
  tile.any_special |= tile.special[panel] != 0;
}

void gather_k(const Task& task, std::int64_t first, KeyRange c, IntegerTile& tile) {
  static_cast<void>(gather(task, first, c, true, tile.k.blocks(), tile.k, tile.k.integers));
  // A sum times Inf might be one; floats, element by element, give a NaN.
  const std::int64_t blocks = tile.k.blocks();
  constexpr float kMost = std::numeric_limits<float>::max();
  if (range_of(tile.k.factors + c.begin * blocks, (c.end - c.begin) * blocks).within(0.0F, kMost)) return;
  for (std::int64_t i = c.begin * blocks; i < c.end * blocks; ++i) {
    float& f = tile.k.factors[i];
    if (!std::isfinite(f)) f = std::numeric_limits<float>::quiet_NaN();
  }
}

void gather_v(const Task& task, std::int64_t first, KeyRange c, IntegerTile& tile) {
  const std::int64_t d = tile.v.channels, blocks = tile.v.folded ? d / kLeastBlock : tile.v.blocks();
  const IntegerKeys keys{c.begin, c.end};
  // The other key of a pair.
  std::fill(tile.v_rows + 2 * keys.first_pair() * d, tile.v_rows + c.begin * d, std::int16_t{0});
  std::fill(tile.v_rows + c.end * d, tile.v_rows + 2 * keys.last_pair() * d, std::int16_t{0});
  tile.broken = gather(task, first, c, false, blocks, tile.v, tile.v_rows);
  const float ratio = tile.v.folded ? kLeastFolded : 0.0F;
  const Range all = range_of(tile.v.factors + c.begin * blocks, (c.end - c.begin) * blocks);
  if (tile.broken != 0 || !all.within(std::max(kLeastFactor, all.most * ratio), kMostFactor))
    mark_broken_keys(c, blocks, ratio, tile);
  if (tile.v.folded) fold_blocks(keys, d, tile.v.limit, tile.v_rows, tile.v.factors);
  pair_keys(keys, d, tile.v_rows, reinterpret_cast<std::int16_t*>(tile.v.integers));
}

void score_panel(const AttentionProblem& problem, std::int64_t panel, std::int64_t width, KeyRange c,
                 const IntegerTile& tile, float* x) {
  const IntegerShape shape = shape_of(tile.k, width);
  integer_scores(shape, c.end - c.begin, tile.k.integers + c.begin * shape.channels * shape.bytes(),
                 tile.k.factors + c.begin * shape.blocks(), tile.queries + panel * panel_words(problem), x);
}

void add_panel_values(std::int64_t width, KeyRange c, const float* p, const float* keep, const IntegerTile& tile,
                      float* o) {
  const IntegerOperand& v = tile.v;
  const IntegerKeys keys{c.begin, c.end};
  const auto* integers = reinterpret_cast<const std::int16_t*>(v.integers);
  integer_units(keys, width, p, v.factors, v.blocks(), v.form, tile.units);
  for (std::int64_t b = 0; b < v.blocks(); ++b) {
    const float* units = tile.units + 2 * b * width;
    integer_weights(keys, width, p, v.factors + b, v.blocks(), units, tile.weights);
    integer_values(keys, v.block, width, integers + 2 * b * v.block, v.channels, tile.weights, units, keep,
                   o + b * v.block * width);
  }
}

}  // namespace mpfa::cpu
