// A sequence as bytes. Only what belongs to it is written: slots past its tokens and padding are zero.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/blob.hpp"
#include "cache/state.hpp"
#include "mpfa/layout.hpp"

namespace mpfa {
namespace {

/// Copies slots [0, n) of one (page, head), n a multiple of block_keys or of a format with rows per token.
void copy_slots(const BlockFormat& f, const PageGeometry& g, std::int64_t page_size, std::int64_t n,
                const std::byte* data, const std::byte* scales, std::byte* data_out, std::byte* scales_out) {
  const auto copy_rows = [](std::int64_t rows, std::int64_t row_bytes, std::int64_t bytes, const std::byte* from,
                            std::byte* to) {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(to + r * row_bytes, from + r * row_bytes, static_cast<std::size_t>(bytes));
    }
  };
  const std::int64_t groups = (n + f.block_keys - 1) / f.block_keys;
  if (f.axis == PackAxis::keys) {
    copy_rows(g.data_rows, g.data_row_bytes, n * element_bits(f.element) / 8, data, data_out);
    copy_rows(g.scale_rows, g.scale_row_bytes, g.scale_row_bytes * groups * f.block_keys / page_size, scales,
              scales_out);
  } else {
    copy_rows(n, g.data_row_bytes, g.data_row_bytes, data, data_out);
    copy_rows(std::min(groups, g.scale_rows), g.scale_row_bytes, g.scale_row_bytes, scales, scales_out);
  }
}

}  // namespace

void PagedCache::State::page_image(const Sequence& s, std::int64_t index, std::byte* out) const {
  const PageLayout& l = layout;
  const std::byte* page = pool.data() + s.pages[index] * l.page_bytes;
  const auto filled = [&](std::int64_t end) {
    return std::clamp<std::int64_t>(end - index * config.page_size, 0, config.page_size);
  };
  std::fill_n(out, l.page_bytes, std::byte{0});
  const std::int64_t packed = filled(s.packed_end);
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    const std::int64_t k = l.k_data + h * l.k.data_bytes(), k_scale = l.k_scale + h * l.k.scale_bytes();
    const std::int64_t v = l.v_data + h * l.v.data_bytes(), v_scale = l.v_scale + h * l.v.scale_bytes();
    copy_slots(config.recipe.k, l.k, config.page_size, packed, page + k, page + k_scale, out + k, out + k_scale);
    if (!config.shared_kv)
      copy_slots(config.recipe.v, l.v, config.page_size, packed, page + v, page + v_scale, out + v, out + v_scale);
    // Written when the page became full; before that it may hold what another sequence left there.
    const std::int64_t means = packed < config.page_size ? 0 : l.v_mean_bytes / config.kv_heads;
    std::memcpy(out + l.v_means + h * means, page + l.v_means + h * means, static_cast<std::size_t>(means));
    const std::int64_t terms = l.rank_one_bytes / config.kv_heads;
    const std::int64_t at = l.rank_one + h * terms;
    std::memcpy(out + at, page + at, static_cast<std::size_t>(terms / config.page_size * filled(s.length)));
  }
}

Status PagedCache::save(std::vector<std::byte>& blob, std::int64_t sequence) const {
  const State& st = *state_;
  const CacheConfig& c = st.config;
  MPFA_RETURN_IF_ERROR(st.check_sequence("save", sequence));
  const Sequence& s = st.sequences[sequence];
  try {
    std::vector<std::byte> out;
    const auto pages = static_cast<std::int64_t>(s.pages.size());
    out.reserve(static_cast<std::size_t>(pages * st.layout.page_bytes + s.wide_bytes() + 4096));
    BlobWriter w(out);
    w.raw(kBlobMagic.data(), kBlobMagic.size());
    w.integer(kBlobVersion);
    w.integer(0);  // the size, known at the end
    w.text(recipe_text(c.recipe));
    w.text(format_name(c.recipe.k));
    w.text(format_name(c.recipe.v));
    w.text(nibble_order_name(NibbleOrder::interleaved));
    const std::int64_t shared = c.shared_kv ? 1 : 0;
    for (const std::int64_t x :
         {c.q_heads, c.kv_heads, c.head_dim, c.head_dim_v, shared, c.page_size, st.layout.page_bytes}) {
      w.integer(x);
    }
    w.array(c.k_global);
    w.array(c.v_global);
    w.integer(st.sealed ? 1 : 0);
    for (const std::int64_t x : {s.length, s.packed_end, s.wide_begin}) w.integer(x);
    for (const auto* x : {&s.state.k_mean, &s.state.q_mean, &s.state.v_mean, &s.state.v_alpha, &s.state.v_beta}) {
      w.array(*x);
    }
    for (const auto* x : {&s.sink_k, &s.sink_v, &s.wide_k, &s.wide_v}) w.array(*x);
    std::vector<std::byte> image(static_cast<std::size_t>(st.layout.page_bytes));
    for (std::int64_t i = 0; i < pages; ++i) {
      st.page_image(s, i, image.data());
      w.raw(image.data(), image.size());
    }
    const auto size = static_cast<std::int64_t>(out.size() + kBlobTail);
    std::memcpy(out.data() + kBlobMagic.size() + sizeof kBlobVersion, &size, sizeof size);
    const std::uint64_t sum = blob_checksum(out);
    w.raw(&sum, sizeof sum);
    blob.swap(out);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            fmt::format("save: {} tokens do not fit in memory a second time; free some first", s.length)};
  }
  return {};
}

}  // namespace mpfa
