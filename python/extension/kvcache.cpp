// Attention over key/value caches that belong to the caller: rotary embedding, append in place, attend in place.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <set>

#include "cache/rope.hpp"
#include "cache/row_ops.hpp"
#include "extension/bindings.hpp"
#include "extension/rope.hpp"
#include "extension/runner.hpp"
#include "extension/store.hpp"

namespace mpfa::python {

namespace {

const char* format_of(DType t, const char* name) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
    default: fail("{} is {}; float32, bfloat16 or float16 is needed", name, dtype_text(t));
  }
}

/// K or V of a cache [pages, page_size, kv_heads, d], read where it lies.
OperandPages pages_of(const Array& x, const char* name) {
  const auto size = static_cast<std::int64_t>(dtype_bytes(x.dtype));
  if (x.shape[3] > 1 && x.stride[3] != 1) {
    fail("{} has stride {} along the head dim; it must be 1: make the last dimension contiguous", name, x.stride[3]);
  }
  OperandPages pages;
  pages.data = static_cast<const std::byte*>(x.data);
  pages.data_page_stride = x.stride[0] * size;
  pages.data_row_stride = x.stride[1] * size;
  pages.data_head_stride = x.stride[2] * size;
  return pages;
}

/// Which page of which cache row every token of the call lies in.
struct Layout {
  std::int64_t batch = 0, page_size = 0, columns = 0;
  std::vector<std::int32_t> table;  // [batch, columns]
};

Layout layout_of(const Array& k_cache, nb::handle block_table, nb::handle batch_index, std::int64_t batch) {
  Layout l;
  l.page_size = k_cache.shape[1];
  l.batch = batch;
  if (!block_table.is_none()) {
    const Array t = import_array(block_table, "block_table");
    if (t.ndim != 2 || t.dtype != DType::i32 || t.shape[0] != batch) {
      fail("block_table is {} of shape {}; int32 [{} sequences, pages] is needed", dtype_text(t.dtype), shape_text(t),
           batch);
    }
    if (!batch_index.is_none()) fail("cache_batch_idx and block_table exclude each other; give one of them");
    l.columns = t.shape[1];
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t c = 0; c < l.columns; ++c) {
        l.table.push_back(static_cast<const std::int32_t*>(t.data)[b * t.stride[0] + c * t.stride[1]]);
      }
    }
    return l;
  }
  l.columns = 1;
  const auto index = import_integers(batch_index, "cache_batch_idx");
  const std::int64_t rows = index ? static_cast<std::int64_t>(index->size()) : batch;
  if (rows != batch || (!index && k_cache.shape[0] != batch)) {
    fail("q has {} sequences, the cache has {} and cache_batch_idx {}; one cache row for each sequence is needed",
         batch, k_cache.shape[0], index ? std::to_string(rows) : "is None");
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t row = index ? (*index)[b] : b;
    if (row < 0 || row >= k_cache.shape[0]) {
      fail("cache_batch_idx[{}] is {}; rows of the cache are in [0, {})", b, row, k_cache.shape[0]);
    }
    l.table.push_back(static_cast<std::int32_t>(row));
  }
  return l;
}

/// Refuses what a write could destroy: rows past the capacity, pages that do not exist or are written twice.
void check_write(const Layout& l, const Array& cache, const std::vector<std::int64_t>& lengths, std::int64_t n) {
  std::set<std::pair<std::int32_t, std::int64_t>> written;
  for (std::int64_t b = 0; b < l.batch; ++b) {
    for (std::int64_t t = lengths[b]; t < lengths[b] + n; ++t) {
      const std::int32_t page = l.table[b * l.columns + t / l.page_size];
      if (page < 0 || page >= cache.shape[0]) {
        fail("block_table[{}, {}] is {}; page ids must be in [0, {})", b, t / l.page_size, page, cache.shape[0]);
      }
      if (!written.insert({page, t % l.page_size}).second) {
        fail("sequences of the call append to the same slot {} of page {}; give every sequence its own",
             t % l.page_size, page);
      }
    }
  }
}

/// With `rope`, rows are turned to their position on the way.
void write_rows(const Layout& l, const Array& x, const std::vector<std::int64_t>& lengths, const Array& cache,
                const Rope* rope) {
  const auto size = dtype_bytes(x.dtype);
  for (std::int64_t b = 0; b < l.batch; ++b) {
    for (std::int64_t i = 0; i < x.shape[1]; ++i) {
      const std::int64_t t = lengths[b] + i;
      const std::int64_t page = l.table[b * l.columns + t / l.page_size];
      const RopeRow turn = rope == nullptr ? RopeRow() : RopeRow(*rope, t);
      for (std::int64_t h = 0; h < x.shape[2]; ++h) {
        const auto from = b * x.stride[0] + i * x.stride[1] + h * x.stride[2];
        const auto to = page * cache.stride[0] + t % l.page_size * cache.stride[1] + h * cache.stride[2];
        if (rope != nullptr) {
          rows::Row row;
          rows::load(x.view(), from, x.stride[3], x.shape[3], row.x);
          turn.turn(row.x);
          rows::store(row.x, x.shape[3], cache.mutable_view(), to, cache.stride[3]);
          continue;
        }
        copy_row(x, from, x.stride[3], static_cast<char*>(cache.data) + to * static_cast<std::int64_t>(size));
      }
    }
  }
}

void check_new_rows(const Array& x, const char* name, const Array& cache, std::int64_t batch, std::int64_t rows) {
  if (x.dtype == cache.dtype && x.shape[0] == batch && x.shape[1] == rows && x.shape[2] == cache.shape[2] &&
      x.shape[3] == cache.shape[3]) {
    return;
  }
  fail("{} is {} of shape {}; {} (the cache's) [{}, {}, {}, {}] is needed", name, dtype_text(x.dtype), shape_text(x),
       dtype_text(cache.dtype), batch, rows, cache.shape[2], cache.shape[3]);
}

/// The tuple that attend_kvcache takes; checks every position of the call.
void import_rotation(nb::handle rope, const Array& q_out, std::int64_t head_dim,
                     const std::vector<std::int64_t>& lengths, std::int64_t added, RopeInput& to,
                     std::vector<std::int64_t>& q_positions) {
  const auto item = [&](int i) { return nb::object(rope[nb::int_(i)]); };
  import_tables(item(0), item(1), "rotary_cos", "rotary_sin", nb::cast<bool>(item(2)), to);
  const bool local = nb::cast<bool>(item(3));
  to.q = import_rows(item(4), "q", false);
  to.rope.q = to.q.view();
  to.rope.q_out = q_out.mutable_view();
  check(check_rope("flash_attn_with_kvcache", to.rope, head_dim));
  if (head_dim > rows::kLongest || q_out.shape[3] != head_dim) {
    fail("q has head dim {}, k_cache {}; one head dim of at most {} can be rotated", q_out.shape[3], head_dim,
         rows::kLongest);
  }
  const auto batch = static_cast<std::int64_t>(lengths.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < q_out.shape[1]; ++i) {
      q_positions.push_back(lengths[b] + (local ? i : 0));
      check(check_position("flash_attn_with_kvcache", to.rope, q_positions.back(), "query", i, b));
    }
    if (added > 0) {
      check(check_position("flash_attn_with_kvcache", to.rope, lengths[b] + added - 1, "token", added - 1, b));
    }
  }
}

/// k_cache, v_cache [rows, capacity, kv_heads, d] or, with block_table, [pages, page_size, kv_heads, d]. lengths: keys
/// of each sequence before the new rows k, v [batch, n, kv_heads, d] (or None), which are written in place. rope: None,
/// or (cos, sin, interleaved, local, q): k is rotated at its position, and rows of this q are rotated to the memory of
/// `q` before it is read: row i at lengths + i when `local`, else all at lengths.
void attend_kvcache(nb::handle q, nb::handle out, nb::handle lse, const nb::tuple& call_options, nb::handle k_cache,
                    nb::handle v_cache, nb::handle k, nb::handle v, nb::handle lengths, nb::handle block_table,
                    nb::handle batch_index, nb::handle rope) {
  const CallOptions options(call_options);
  const bool appends = !k.is_none();
  if (appends != !v.is_none()) fail("k and v belong together; give both or neither");
  const Array kc = import_rows(k_cache, "k_cache", false, appends);
  const Array vc = import_rows(v_cache, "v_cache", false, appends);
  for (int i = 0; i < 3; ++i) {
    if (kc.shape[i] != vc.shape[i]) {
      fail("k_cache has shape {}, v_cache {}; all but the last must be equal", shape_text(kc), shape_text(vc));
    }
  }
  AttentionProblem problem;
  const std::int64_t q_heads = import_rows(q, "q", !options.cu_seqlens_q.is_none()).shape[2];
  Call call;
  import_call(q, out, lse, options, q_heads, call);
  problem.recipe = take(parse_recipe(fmt::format("q={},k={},v={},p=f32", format_of(call.q.dtype, "q"),
                                                 format_of(kc.dtype, "k_cache"), format_of(vc.dtype, "v_cache"))));
  problem.q_heads = q_heads;
  problem.kv_heads = kc.shape[2];
  problem.head_dim = kc.shape[3];
  problem.head_dim_v = vc.shape[3];
  problem.page_size = kc.shape[1];
  if (kc.shape[0] < 1 || kc.shape[1] < 1) fail("k_cache has shape {}; it has room for no token", shape_text(kc));

  const Layout layout = layout_of(kc, block_table, batch_index, call.key.batch);
  const std::int64_t capacity = layout.columns * layout.page_size;
  const std::vector<std::int64_t> before =
      import_integers(lengths, "cache_seqlens").value_or(std::vector<std::int64_t>(layout.batch, capacity));
  if (static_cast<std::int64_t>(before.size()) != layout.batch) {
    fail("cache_seqlens has {} entries; one for each of the {} sequences is needed", before.size(), layout.batch);
  }
  std::optional<Array> new_k, new_v;
  if (appends) {
    new_k = import_rows(k, "k", false);
    new_v = import_rows(v, "v", false);
    check_new_rows(*new_k, "k", kc, layout.batch, new_k->shape[1]);
    check_new_rows(*new_v, "v", vc, layout.batch, new_k->shape[1]);
  }
  const std::int64_t added = appends ? new_k->shape[1] : 0;
  std::vector<std::int64_t> after = before;
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    if (before[b] < 0 || before[b] > capacity - added) {
      fail("cache_seqlens[{}] is {} and {} tokens are appended; the cache holds {} tokens per sequence", b, before[b],
           added, capacity);
    }
    after[b] += added;
  }
  RopeInput turn;
  std::vector<std::int64_t> q_positions;
  const bool rotates = !rope.is_none();
  if (rotates) import_rotation(rope, call.q, kc.shape[3], before, added, turn, q_positions);

  CacheView& view = call.tensors.cache;
  view.k_format = problem.recipe.k;
  view.v_format = problem.recipe.v;
  view.num_pages = kc.shape[0];
  view.page_size = problem.page_size;
  view.kv_heads = problem.kv_heads;
  view.head_dim = problem.head_dim;
  view.head_dim_v = problem.head_dim_v;
  view.k = pages_of(kc, "k_cache");
  view.v = pages_of(vc, "v_cache");
  view.group = std::max<std::int64_t>(1, q_heads / std::max<std::int64_t>(1, problem.kv_heads));
  view.page_table = layout.table.data();
  view.page_table_stride = layout.columns;
  view.lengths = after.data();
  call.key.max_kv = capacity;

  nb::gil_scoped_release released;
  Runner runner(std::move(problem));
  check(runner.prepare(call.key, call.tensors));  // everything is checked before the first write
  if (appends) {
    check_write(layout, kc, before, added);
    if (rotates) rotate_queries({}, turn.rope, q_positions);
    write_rows(layout, *new_k, before, kc, rotates ? &turn.rope : nullptr);
    write_rows(layout, *new_v, before, vc, nullptr);
  }
  check(runner.run(call.key, call.tensors));
}

}  // namespace

void bind_kvcache(nb::module_& m) {
  const auto any = nb::arg().none();
  m.def("attend_kvcache", &attend_kvcache, any, any, any, nb::arg(), any, any, any, any, any, any, any, any);
}

}  // namespace mpfa::python
