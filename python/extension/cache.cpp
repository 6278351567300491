// The cache of Python: tokens in, attention out, and the binding of the class.
#include "extension/cache.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "extension/rope.hpp"

namespace mpfa::python {

namespace {

AttentionProblem fixed_part(const CacheConfig& c) {
  AttentionProblem p;
  p.recipe = c.recipe;
  p.q_heads = c.q_heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = c.head_dim;
  p.head_dim_v = c.head_dim_v;
  p.page_size = c.page_size;
  return p;
}

/// Page ids of the pages in use, one list per sequence.
std::vector<std::vector<std::int32_t>> used_pages(const PagedCache& cache) {
  const CacheView view = cache.view();
  std::vector<std::vector<std::int32_t>> rows;
  for (std::int64_t b = 0; b < cache.config().batch; ++b) {
    const std::int32_t* row = view.page_table + b * view.page_table_stride;
    rows.emplace_back(row, row + pages_for(view.lengths[b], 1, view.page_size));
  }
  return rows;
}

std::vector<std::int32_t> check_rows(std::int64_t n, const std::optional<std::vector<std::int64_t>>& ids,
                                     const std::optional<std::vector<std::int64_t>>& counts) {
  std::vector<std::int32_t> narrowed;
  if (counts && static_cast<std::int64_t>(counts->size()) != n) {
    fail("append: counts has {} entries, k has {} sequences; one count each is needed", counts->size(), n);
  }
  if (!ids) return narrowed;
  if (static_cast<std::int64_t>(ids->size()) != n) {
    fail("append: sequences has {} entries, k has {} sequences; one id each is needed", ids->size(), n);
  }
  for (const std::int64_t id : *ids) narrowed.push_back(narrow(id, "append: sequences"));
  return narrowed;
}

}  // namespace

std::int64_t pages_for(std::int64_t tokens, std::int64_t batch, std::int64_t page_size) {
  if (tokens < 0 || batch < 1 || page_size < 1) return 0;
  std::int64_t pages = 0;
  const std::int64_t each = tokens / page_size + (tokens % page_size != 0 ? 1 : 0);
  if (__builtin_mul_overflow(each, batch, &pages)) return std::numeric_limits<std::int64_t>::max();
  return pages;
}

std::int32_t narrow(std::int64_t id, const char* name) {
  if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) fail("{}: {} is not an id", name, id);
  return static_cast<std::int32_t>(id);
}

Cache::Cache(PagedCache cache, bool grows)
    : cache_(std::move(cache)), runner_(fixed_part(cache_.config())), grows_(grows) {}

Status Cache::with_room(const std::function<Status()>& body, const std::function<std::int64_t()>& missing) {
  Status status = body();
  if (status.code() != StatusCode::out_of_memory || !grows_) return status;
  const std::int64_t pages = cache_.config().num_pages;
  MPFA_RETURN_IF_ERROR(cache_.grow(pages + std::max(missing(), pages)));
  return body();
}

void Cache::append(nb::handle k, nb::handle v, nb::handle q, nb::handle sequences, nb::handle counts, nb::handle rope) {
  const Array k_array = import_rows(k, "k", false);
  const Array v_array = v.is_none() ? Array{} : import_rows(v, "v", false);
  const Array q_array = q.is_none() ? Array{} : import_rows(q, "q", false);
  const auto ids = import_integers(sequences, "sequences");
  const auto tokens = import_integers(counts, "counts");
  const std::vector<std::int32_t> ids32 = check_rows(k_array.shape[0], ids, tokens);
  const TensorView q_view = q_array.view();
  const auto turn = import_rope(rope, k_array.shape[0] * k_array.shape[1], false);
  const auto run = [&] {
    const TensorView* const queries = q.is_none() ? nullptr : &q_view;
    const std::int32_t* const rows = ids ? ids32.data() : nullptr;
    const std::int64_t* const taken = tokens ? tokens->data() : nullptr;
    const Rope* const turned = turn ? &turn->rope : nullptr;
    if (v.is_none()) return cache_.append(k_array.view(), queries, rows, taken, turned);
    return cache_.append(k_array.view(), v_array.view(), queries, rows, taken, turned);
  };
  const auto missing = [&](bool copies) {
    std::int64_t pages = -cache_.free_pages();
    for (std::int64_t i = 0; i < k_array.shape[0]; ++i) {
      const std::int64_t length = cache_.lengths()[ids ? ids32[i] : i];
      const std::int64_t page_size = cache_.config().page_size;
      const std::int64_t count = tokens ? (*tokens)[i] : k_array.shape[1];
      pages += pages_for(length + count, 1, page_size) - pages_for(length, 1, page_size);
      // No more shared pages are written than the tokens reach, a block that waited and its ends.
      if (copies) pages += pages_for(count, 1, page_size) + 3;
    }
    return pages;
  };
  check(exclusively([&] {
    return with_room([&] { return with_room(run, [&] { return missing(false); }); }, [&] { return missing(true); });
  }));
}

void Cache::attend(nb::handle q, nb::handle out, nb::handle lse, const nb::tuple& options) {
  Call call;
  import_call(q, out, lse, CallOptions(options), cache_.config().q_heads, call);
  if (call.key.batch != cache_.config().batch) {
    fail("attend: q has {} sequences, the cache has {}; pass one row block per sequence", call.key.batch,
         cache_.config().batch);
  }
  check(exclusively([&] {
    call.key.max_kv = round_up_capacity(longest());
    call.tensors.cache = cache_.view();
    return runner_.run(call.key, call.tensors);
  }));
}

void Cache::seal() {
  const auto missing = [this] {
    std::int64_t pages = -cache_.free_pages();
    for (const std::int64_t length : cache_.lengths()) pages += pages_for(length, 1, cache_.config().page_size);
    return pages;
  };
  check(exclusively([&] { return with_room([this] { return cache_.seal(); }, missing); }));
}

void Cache::reserve(std::int64_t tokens) {
  const CacheConfig& c = cache_.config();
  const std::int64_t pages = pages_for(tokens, c.batch, c.page_size);
  if (tokens < 0) fail("reserve: tokens is {}; 0 or more per sequence are needed", tokens);
  if (pages > c.num_pages) check(exclusively([&] { return cache_.grow(pages); }));
}

std::int64_t Cache::longest() const {
  const auto& lengths = cache_.lengths();
  return *std::max_element(lengths.begin(), lengths.end());
}

CacheConfig make_config(const std::string& recipe, std::int64_t batch, std::int64_t page_size, std::int64_t q_heads,
                        std::int64_t kv_heads, std::int64_t head_dim, std::int64_t head_dim_v, const Means& means) {
  CacheConfig c;
  c.recipe = take(parse_recipe(recipe));
  c.batch = batch;
  c.page_size = page_size;
  c.q_heads = q_heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.head_dim_v = head_dim_v;
  c.k_mean = import_optional_floats(means.k_mean, "k_mean", {kv_heads, head_dim});
  c.q_mean = import_optional_floats(means.q_mean, "q_mean", {q_heads, head_dim});
  c.v_mean = import_optional_floats(means.v_mean, "v_mean", {kv_heads, head_dim_v});
  c.k_global = import_optional_floats(means.k_scale, "k_scale", {kv_heads});
  c.v_global = import_optional_floats(means.v_scale, "v_scale", {kv_heads});
  return c;
}

void bind_cache(nb::module_& m) {
  const auto any = nb::arg().none();
  nb::class_<Cache>(m, "Cache")
      .def(
          "__init__",
          [](Cache* self, const std::string& recipe, std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
             std::int64_t head_dim_v, bool shared_kv, std::int64_t batch, std::int64_t page_size, std::int64_t capacity,
             nb::object k_mean, nb::object q_mean, nb::object v_mean, nb::object k_scale, nb::object v_scale) {
            CacheConfig c = make_config(recipe, batch, page_size, q_heads, kv_heads, head_dim, head_dim_v,
                                        {k_mean, q_mean, v_mean, k_scale, v_scale});
            c.shared_kv = shared_kv;
            const bool grows = capacity < 0;
            c.num_pages = pages_for(grows ? 1 : capacity, batch, page_size);
            new (self) Cache(take(PagedCache::create(std::move(c))), grows);
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), any, any,
          any, any, any)
      .def("append", &Cache::append, any, any, any, any, any, any)
      .def("attend", &Cache::attend, any, any, any, nb::arg())
      .def("seal", &Cache::seal)
      .def("reserve", &Cache::reserve)
      .def("free_sequence", &Cache::free_sequence)
      .def("fork", &Cache::fork)
      .def("truncate", &Cache::truncate)
      .def("shift", &Cache::shift, nb::arg(), nb::arg(), nb::arg(), any)
      .def("remove", &Cache::remove, nb::arg(), nb::arg(), nb::arg(), any)
      .def("write_slots", &Cache::write_slots, any, any, any, any)
      .def("free_slots", &Cache::free_slots, any, any)
      .def("save", &Cache::save)
      .def("load", &Cache::load)
      .def("import_pages", &Cache::import_pages, nb::arg(), nb::arg(), nb::arg(), any, nb::arg())
      .def("export_pages", &Cache::export_pages, nb::arg(), nb::arg(), nb::arg(), any, nb::arg())
      .def("has_state", &Cache::has_state)
      .def("device_state", &Cache::device_state)
      .def("copy_means", &Cache::copy_means, any, any)
      .def("copy_page", &Cache::copy_page)
      .def("set_pages", &Cache::set_pages, nb::arg(), any, any)
      .def("page_generation", &Cache::page_generation)
      .def("page_table", [](Cache& c) { return c.ask(used_pages); })
      .def("lengths", [](Cache& c) { return c.ask([](const PagedCache& p) { return p.lengths(); }); })
      .def("memory_bytes", [](Cache& c) { return c.ask([](const PagedCache& p) { return p.memory_bytes(); }); })
      .def("free_pages", [](Cache& c) { return c.ask([](const PagedCache& p) { return p.free_pages(); }); })
      .def("num_pages", [](Cache& c) { return c.ask([](const PagedCache& p) { return p.config().num_pages; }); })
      .def("formats",
           [](Cache& c) {
             return c.ask([](const PagedCache& p) {
               return std::pair(format_name(p.config().recipe.k), format_name(p.config().recipe.v));
             });
           })
      .def("recipe", [](Cache& c) { return c.ask([](const PagedCache& p) { return recipe_text(p.config().recipe); }); })
      .def("counters", [](Cache& c) {
        const QuantiseCounters met = c.ask([](const PagedCache& p) { return p.counters(); });
        return std::vector<std::int64_t>{met.saturated_elements, met.flushed_blocks, met.nonfinite_blocks};
      });
}

}  // namespace mpfa::python
