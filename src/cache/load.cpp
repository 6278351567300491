// A saved sequence back into a cache. The blob may come from anywhere: all of it is checked before anything is changed.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "cache/blob.hpp"
#include "cache/state.hpp"
#include "mpfa/layout.hpp"
#include "text/printable.hpp"

namespace mpfa {
namespace {

Status damaged(const std::string& what) {
  return {StatusCode::io_error, fmt::format("load: {}; the blob is damaged or not from save, save it again", what)};
}

Status mismatch(const char* what, const std::string& blob, const std::string& cache) {
  return {StatusCode::invalid_argument,
          fmt::format("load: the blob's {} is {}, the cache's is {}; load into a cache made with the blob's", what,
                      blob, cache)};
}

Status check_frame(std::span<const std::byte> blob) {
  if (blob.size() < kBlobHead + kBlobTail || std::memcmp(blob.data(), kBlobMagic.data(), kBlobMagic.size()) != 0) {
    return damaged(fmt::format("{} bytes were given; a blob begins with {} and has at least {}", blob.size(),
                               printable(kBlobMagic), kBlobHead + kBlobTail));
  }
  std::int64_t head[2];  // version, size
  std::memcpy(head, blob.data() + kBlobMagic.size(), sizeof head);
  if (head[0] != kBlobVersion) {
    return {
        StatusCode::unsupported,
        fmt::format("load: blob version {} is not known, this build reads version {}; save it again with this build",
                    head[0], kBlobVersion)};
  }
  if (head[1] < 0 || static_cast<std::uint64_t>(head[1]) != blob.size()) {
    return damaged(fmt::format("{} bytes given, {} were saved", blob.size(), head[1]));
  }
  std::uint64_t sum = 0;
  const std::span<const std::byte> body = blob.first(blob.size() - kBlobTail);
  std::memcpy(&sum, blob.data() + body.size(), sizeof sum);
  if (sum != blob_checksum(body)) return damaged("the checksum does not match");
  return {};
}

/// The part that says what the bytes are.
Status match_config(BlobReader& in, const CacheConfig& c, std::int64_t page_bytes) {
  const std::pair<const char*, std::string> texts[] = {
      {"recipe", recipe_text(c.recipe)},
      {"format of K", format_name(c.recipe.k)},
      {"format of V", format_name(c.recipe.v)},
      {"nibble order", std::string(nibble_order_name(NibbleOrder::interleaved))}};
  for (const auto& [name, ours] : texts) {
    std::string theirs;
    if (!in.text(theirs)) return damaged(fmt::format("it ends within the {}", name));
    if (theirs != ours) return mismatch(name, printable(theirs, 200), printable(ours, 200));
  }
  const std::pair<const char*, std::int64_t> numbers[] = {{"q_heads", c.q_heads},
                                                          {"kv_heads", c.kv_heads},
                                                          {"head_dim", c.head_dim},
                                                          {"head_dim_v", c.head_dim_v},
                                                          {"shared_kv", c.shared_kv ? 1 : 0},
                                                          {"page_size", c.page_size},
                                                          {"size of a page in bytes", page_bytes}};
  for (const auto& [name, ours] : numbers) {
    std::int64_t theirs = 0;
    if (!in.integer(theirs)) return damaged(fmt::format("it ends within {}", name));
    if (theirs != ours) return mismatch(name, fmt::to_string(theirs), fmt::to_string(ours));
  }
  const std::pair<const char*, const std::vector<float>*> scales[] = {{"k_global", &c.k_global},
                                                                      {"v_global", &c.v_global}};
  for (const auto& [name, ours] : scales) {
    std::int64_t count = 0;
    BlobReader ahead = in;
    if (!ahead.integer(count)) return damaged(fmt::format("it ends within {}", name));
    if (count != static_cast<std::int64_t>(ours->size())) {
      return mismatch(name, fmt::format("{} values", count), fmt::format("{} values", ours->size()));
    }
    std::vector<float> theirs;
    if (!in.array(theirs, count)) return damaged(fmt::format("it ends within {}", name));
    // Codes mean nothing under another scale. Bits are compared, so that no two zeros or NaNs pass for each other.
    if (count > 0 && std::memcmp(theirs.data(), ours->data(), theirs.size() * sizeof(float)) != 0) {
      return mismatch(name, "another set of values", "its own");
    }
  }
  return {};
}

}  // namespace

Status PagedCache::State::read_sequence(std::span<const std::byte> body, Sequence& s, bool& phase) const {
  const CacheConfig& c = config;
  const Recipe& r = c.recipe;
  BlobReader in(body);
  MPFA_RETURN_IF_ERROR(match_config(in, c, layout.page_bytes));
  std::int64_t sealed_then = 0;
  if (!in.integer(sealed_then) || !in.integer(s.length) || !in.integer(s.packed_end) || !in.integer(s.wide_begin)) {
    return damaged("it ends within the lengths");
  }
  if (sealed_then != 0 && (sealed_then != 1 || !r.phase_switch)) return damaged("its phase is none of this recipe");
  phase = sealed_then == 1;
  if (s.length < 0 || static_cast<std::uint64_t>(s.length) > in.left() * static_cast<std::uint64_t>(c.page_size)) {
    return damaged(fmt::format("it claims {} tokens in {} bytes", s.length, in.left()));
  }
  const std::int64_t pages = (s.length + c.page_size - 1) / c.page_size;
  if (pages > static_cast<std::int64_t>(in.left()) / layout.page_bytes) {
    return damaged(fmt::format("it claims {} pages of {} bytes in {}", pages, layout.page_bytes, in.left()));
  }
  const std::int64_t unit = commit_unit(r, c.page_size);
  const bool wide = keeps_wide_tokens(r);
  const std::int64_t packed = r.phase_switch && !phase ? 0 : packed_limit(s.length - 1, unit, recent(), s.length);
  const bool begins =
      wide ? s.wide_begin >= 0 && s.wide_begin <= packed && s.wide_begin % unit == 0 : s.wide_begin == s.length;
  if (s.packed_end != packed || !begins) {
    return damaged(
        fmt::format("{} tokens with packed_end {} and wide_begin {} cannot be", s.length, s.packed_end, s.wide_begin));
  }
  const auto floats = [&](const char* name, std::vector<float>& v, bool used, std::int64_t count) {
    return in.array(v, used && s.length > 0 ? count : 0) ? Status() : damaged(fmt::format("wrong size of {}", name));
  };
  const std::int64_t k_row = c.kv_heads * c.head_dim;
  const std::int64_t v_row = c.kv_heads * c.head_dim_v;
  const std::int64_t wide_row = wide_v_row();
  const bool q_mean = r.q_centre == QCentre::mean || r.q_centre == QCentre::fixed;
  MPFA_RETURN_IF_ERROR(floats("k_mean", s.state.k_mean, r.centre != Centre::none, k_row));
  MPFA_RETURN_IF_ERROR(floats("q_mean", s.state.q_mean, q_mean, c.q_heads * c.head_dim));
  MPFA_RETURN_IF_ERROR(floats("v_mean", s.state.v_mean, has_v_mean(c), v_row));
  MPFA_RETURN_IF_ERROR(floats("v_alpha", s.state.v_alpha, r.v_residual, v_row));
  MPFA_RETURN_IF_ERROR(floats("v_beta", s.state.v_beta, r.v_residual, v_row));
  const std::int64_t sink_tokens = std::min(r.sink, s.length);
  const std::int64_t wide_tokens = s.length - s.wide_begin;
  if (!in.array(s.sink_k, sink_tokens * k_row) || !in.array(s.sink_v, sink_tokens * wide_row) ||
      !in.array(s.wide_k, wide_tokens * k_row) || !in.array(s.wide_v, wide_tokens * wide_row)) {
    return damaged("wrong size of the bf16 tokens");
  }
  if (in.left() != static_cast<std::size_t>(pages * layout.page_bytes)) {
    return damaged(fmt::format("{} bytes for {} pages of {}", in.left(), pages, layout.page_bytes));
  }
  return {};
}

Status PagedCache::load(std::span<const std::byte> blob, std::int64_t sequence) {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_empty("load", sequence));
  MPFA_RETURN_IF_ERROR(check_frame(blob));
  const std::span<const std::byte> body = blob.subspan(kBlobHead, blob.size() - kBlobHead - kBlobTail);
  Sequence s;
  bool phase = false;
  try {
    MPFA_RETURN_IF_ERROR(st.read_sequence(body, s, phase));
    const std::int64_t pages = (s.length + st.config.page_size - 1) / st.config.page_size;
    if (s.length > 0 && !st.empty() && phase != st.sealed) {
      return {
          StatusCode::invalid_argument,
          fmt::format("load: the blob was saved {} seal() and this cache is {}; {}load into an empty cache",
                      phase ? "after" : "before", st.sealed ? "sealed" : "not sealed", phase ? "seal it, or " : "")};
    }
    if (pages > st.pool.free_count()) {
      return {StatusCode::out_of_memory,
              fmt::format("load: {} pages of {} tokens are needed, {} are free; grow the cache or free a sequence",
                          pages, st.config.page_size, st.pool.free_count())};
    }
    s.pages.reserve(static_cast<std::size_t>(pages));
    st.reserve_table(pages);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("load: {} tokens do not fit in memory", s.length)};
  }
  if (s.length == 0) return {};
  const std::int64_t pages = (s.length + st.config.page_size - 1) / st.config.page_size;
  const std::byte* from = body.data() + body.size() - pages * st.layout.page_bytes;
  for (std::int64_t i = 0; i < pages; ++i, from += st.layout.page_bytes) {
    s.pages.push_back(st.pool.take());
    std::memcpy(st.pool.page(s.pages.back()), from, static_cast<std::size_t>(st.layout.page_bytes));
  }
  if (st.empty()) st.sealed = phase;
  st.sequences[sequence] = std::move(s);
  st.refresh();
  return {};
}

}  // namespace mpfa
