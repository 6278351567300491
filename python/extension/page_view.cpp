// mpfa._core.PageView: attention over pages, a page table and lengths that Python owns, and writes into them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "cache/state.hpp"
#include "extension/bindings.hpp"
#include "extension/cache.hpp"
#include "extension/page_set.hpp"
#include "extension/rope.hpp"
#include "extension/runner.hpp"
#include "extension/views.hpp"

namespace mpfa::python {

namespace {

/// A page table [batch, pages] of int32 or int64, row by row.
DensePageTable import_table(nb::handle x) {
  const Array t = import_array(x, "page_table");
  if (t.ndim != 2 || (t.dtype != DType::i32 && t.dtype != DType::i64)) {
    fail("page_table is {} of shape {}; int32 or int64 [sequences, pages] is needed", dtype_text(t.dtype),
         shape_text(t));
  }
  DensePageTable table;
  table.stride = std::max<std::int64_t>(t.shape[1], 1);
  table.page_table.assign(static_cast<std::size_t>(t.shape[0] * table.stride), -1);
  for (std::int64_t b = 0; b < t.shape[0]; ++b) {
    for (std::int64_t i = 0; i < t.shape[1]; ++i) {
      const std::int64_t at = b * t.stride[0] + i * t.stride[1];
      const std::int64_t id = t.dtype == DType::i32 ? static_cast<const std::int32_t*>(t.data)[at]
                                                    : static_cast<const std::int64_t*>(t.data)[at];
      // Entries past a length may hold anything: what is no int32 becomes an id that is refused where it is used.
      const bool fits = id >= -1 && id <= std::numeric_limits<std::int32_t>::max();
      table.page_table[static_cast<std::size_t>(b * table.stride + i)] = fits ? static_cast<std::int32_t>(id) : -1;
    }
  }
  return table;
}

std::vector<std::int32_t> import_int32(nb::handle x, const char* name) {
  const auto values = import_integers(x, name);
  if (!values) fail("{} is None; indptr, indices and last_page_len belong together", name);
  std::vector<std::int32_t> narrowed;
  narrowed.reserve(values->size());
  for (const std::int64_t v : *values) {
    if (v != static_cast<std::int32_t>(v)) fail("{} holds {}, which is no int32", name, v);
    narrowed.push_back(static_cast<std::int32_t>(v));
  }
  return narrowed;
}

class PageView {
 public:
  /// v None: V is the first head_dim_v channels of K.
  PageView(nb::object k, nb::object v, std::int64_t head_dim_v, std::string recipe, nb::object k_mean,
           nb::object q_mean, nb::object v_mean)
      : k_object_(std::move(k)), v_object_(std::move(v)), recipe_(std::move(recipe)), v_pages_(k_pages()) {
    v_pages_.kind.head_dim = head_dim_v;
    if (!latent()) v_pages_ = v_set().pages();
    check_view_pages("PageView", k_pages().kind, v_pages().kind);
    const PagesKind &kk = k_pages().kind, &vk = v_pages().kind;
    const std::int64_t q_heads = q_mean.is_none() ? kk.kv_heads : import_array(q_mean, "q_mean").shape[0];
    config_ = make_config(recipe_text_for(DType::f32), 1, kk.page_size, q_heads, kk.kv_heads, kk.head_dim, vk.head_dim,
                          {k_mean, q_mean, v_mean, nb::none(), nb::none()});
    config_.num_pages = kk.num_pages;
    config_.k_global = k_set().global();
    if (!latent()) config_.v_global = v_set().global();
    config_.shared_kv = latent();
    check(check_page_recipe("PageView", config_.recipe));
    check(check_config(config_));
    means_ = fixed_means(config_);
  }

  void set_table(nb::handle page_table, nb::handle lengths, nb::handle indptr, nb::handle indices,
                 nb::handle last_page_len) {
    DensePageTable table;
    if (!page_table.is_none()) {
      table = import_table(page_table);
      auto given = import_integers(lengths, "lengths");
      if (!given) fail("lengths is None; give the tokens of each sequence of page_table");
      table.lengths = *std::move(given);
      if (table.lengths.size() * static_cast<std::size_t>(table.stride) != table.page_table.size()) {
        fail("lengths has {} entries, page_table {} rows; one for each sequence is needed", table.lengths.size(),
             table.page_table.size() / static_cast<std::size_t>(table.stride));
      }
    } else {
      const std::vector<std::int32_t> offsets = import_int32(indptr, "indptr"), ids = import_int32(indices, "indices"),
                                      last = import_int32(last_page_len, "last_page_len");
      table = take(dense_page_table({offsets, ids, last}, k_pages().kind.num_pages, k_pages().kind.page_size));
    }
    std::vector<SequenceView> sequences;
    if (!means_.k_mean.empty() || !means_.q_mean.empty() || !means_.v_mean.empty()) {
      const auto or_null = [](const std::vector<float>& x) { return x.empty() ? nullptr : x.data(); };
      for (const std::int64_t n : table.lengths) {
        SequenceView& s = sequences.emplace_back();
        s.k_mean = or_null(means_.k_mean);
        s.q_mean = or_null(means_.q_mean);
        s.v_mean = or_null(means_.v_mean);
        s.packed_end = s.wide_begin = n;
      }
    }
    nb::gil_scoped_release released;
    std::lock_guard lock(mutex_);
    table_ = std::move(table);
    sequences_ = std::move(sequences);
  }

  void attend(nb::handle q, nb::handle out, nb::handle lse, const nb::tuple& call_options) {
    const CallOptions options(call_options);
    const std::int64_t q_heads = import_rows(q, "q", !options.cu_seqlens_q.is_none()).shape[2];
    Call call;
    import_call(q, out, lse, options, q_heads, call);
    if (!config_.q_mean.empty() && q_heads != config_.q_heads) {
      fail("attend: q has {} heads, q_mean was given for {}", q_heads, config_.q_heads);
    }
    nb::gil_scoped_release released;
    std::lock_guard lock(mutex_);
    if (call.key.batch != static_cast<std::int64_t>(table_.lengths.size())) {
      fail("attend: q has {} sequences, the page table {}; pass one row block per sequence", call.key.batch,
           table_.lengths.size());
    }
    if (!runner_ || runner_->problem().q_heads != q_heads || runner_q_ != call.key.q_dtype) {
      runner_.emplace(problem_for(q_heads, call.key.q_dtype));
      runner_q_ = call.key.q_dtype;
    }
    CacheView& view = call.tensors.cache;
    view = view_of(k_pages(), v_pages(), config_.recipe, q_heads);
    view.shared_kv = latent();
    view.page_table = table_.page_table.data();
    view.page_table_stride = table_.stride;
    view.lengths = table_.lengths.data();
    view.sequences = sequences_.empty() ? nullptr : sequences_.data();
    std::int64_t longest = 0;
    for (const std::int64_t n : table_.lengths) longest = std::max(longest, n);
    call.key.max_kv = round_up_capacity(std::min(longest, std::int64_t{1} << 40));
    check(runner_->run(call.key, call.tensors));
  }

  nb::tuple write_slots(nb::handle k, nb::handle v, nb::handle slot_mapping, nb::handle rope) {
    const auto slots = import_integers(slot_mapping, "slot_mapping");
    if (!slots) fail("slot_mapping is None; one slot per token is needed");
    if (v.is_none() != latent()) {
      fail("write_slots: v is {}; {}", latent() ? "given" : "None",
           latent() ? "V of this view is part of K, so pass None"
                    : "this view has pages of V, so pass its tokens, or make a view with v=None where V is part of K");
    }
    const Array k_array = import_rows(k, "k", true);
    const MutablePages k_to = k_set().writable("k pages");
    Array v_array;
    MutablePages v_to;
    if (!latent()) {
      v_array = import_rows(v, "v", true);
      v_to = v_set().writable("v pages");
    }
    const auto turn = import_rope(rope, static_cast<std::int64_t>(slots->size()), true);
    const bool queries = turn && turn->rope.q.data != nullptr;
    QuantiseCounters met;
    {
      nb::gil_scoped_release released;
      std::lock_guard lock(mutex_);
      // Without a q_mean nothing else says how many query heads there are.
      if (config_.q_mean.empty()) config_.q_heads = queries ? turn->rope.q.shape[2] : config_.kv_heads;
      check(quantise_to_pages(config_, k_to, v_to, k_array.view(), latent() ? TensorView() : v_array.view(),
                              std::span<const std::int64_t>(*slots), &met, turn ? &turn->rope : nullptr));
    }
    return nb::make_tuple(met.saturated_elements, met.flushed_blocks, met.nonfinite_blocks);
  }

  [[nodiscard]] std::vector<std::int64_t> lengths() {
    nb::gil_scoped_release released;
    std::lock_guard lock(mutex_);
    return table_.lengths;
  }
  [[nodiscard]] std::string recipe() const { return recipe_; }

 private:
  [[nodiscard]] const PageSet& k_set() const { return *nb::inst_ptr<PageSet>(k_object_); }
  [[nodiscard]] const PageSet& v_set() const { return *nb::inst_ptr<PageSet>(v_object_); }
  [[nodiscard]] bool latent() const { return v_object_.is_none(); }
  [[nodiscard]] const Pages& k_pages() const { return k_set().pages(); }
  [[nodiscard]] const Pages& v_pages() const { return v_pages_; }

  [[nodiscard]] std::string recipe_text_for(DType q) const {
    return recipe_.empty() ? stored_recipe(q, k_pages().kind, v_pages().kind, "f32") : recipe_;
  }
  [[nodiscard]] AttentionProblem problem_for(std::int64_t q_heads, DType q) const {
    AttentionProblem p;
    p.recipe = take(parse_recipe(recipe_text_for(q)));
    p.q_heads = q_heads;
    p.kv_heads = k_pages().kind.kv_heads;
    p.head_dim = k_pages().kind.head_dim;
    p.head_dim_v = v_pages().kind.head_dim;
    p.page_size = k_pages().kind.page_size;
    return p;
  }

  nb::object k_object_, v_object_;  // keep the arrays alive
  std::string recipe_;              // empty: exact
  Pages v_pages_;
  CacheConfig config_;
  SequenceState means_;
  DensePageTable table_;
  std::vector<SequenceView> sequences_;
  std::optional<Runner> runner_;
  DType runner_q_ = DType::f32;
  std::mutex mutex_;
};

}  // namespace

void bind_page_view(nb::module_& m) {
  const auto any = nb::arg().none();
  nb::class_<PageView>(m, "PageView")
      .def(
          "__init__",
          [](PageView* self, nb::object k, nb::object v, std::int64_t head_dim_v, std::string recipe, nb::object k_mean,
             nb::object q_mean, nb::object v_mean) {
            if (!nb::isinstance<PageSet>(k) || !(v.is_none() || nb::isinstance<PageSet>(v)))
              fail("PageView: k and v must be mpfa.Pages");
            new (self) PageView(std::move(k), std::move(v), head_dim_v, std::move(recipe), k_mean, q_mean, v_mean);
          },
          any, any, nb::arg(), nb::arg(), any, any, any)
      .def("set_table", &PageView::set_table, any, any, any, any, any)
      .def("attend", &PageView::attend, any, any, any, nb::arg())
      .def("write_slots", &PageView::write_slots, any, any, any, any)
      .def("lengths", [](PageView& v) { return nb::tuple(nb::cast(v.lengths())); })
      .def("recipe", &PageView::recipe);
}

}  // namespace mpfa::python
