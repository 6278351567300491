#include "extension/device_view.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "extension/bindings.hpp"
#include "extension/rope.hpp"
#include "extension/views.hpp"
#include "mpfa/device_cache.hpp"

namespace mpfa::python {

namespace {

/// Means for all sequences [heads, d], or for each [batch, heads, d].
std::optional<Array> import_means(nb::handle x, const char* name, std::int64_t heads, std::int64_t d) {
  if (x.is_none()) return std::nullopt;
  const bool each = import_array(x, name, false, Place::device).ndim == 3;
  return each ? import_dense(x, name, DType::f32, {-1, heads, d}) : import_dense(x, name, DType::f32, {heads, d});
}

const float* mean_of(const std::optional<Array>& means, std::int64_t b) {
  if (!means) return nullptr;
  const bool each = means->ndim == 3;
  return static_cast<const float*>(means->data) + (each ? b * means->shape[1] * means->shape[2] : 0);
}

void check_each(const std::optional<Array>& means, const char* name, std::int64_t batch) {
  if (!means || means->ndim == 2 || means->shape[0] == batch) return;
  fail("DevicePageView: {} has means of {} sequences, the page table has {}; they must be equal", name, means->shape[0],
       batch);
}

/// A view carries pages and means of K and V, so other state would be missing without a word.
void check_recipe(const std::string& text) {
  if (text.empty()) return;
  const Recipe r = take(parse_recipe(text));
  const bool q = r.q_centre != QCentre::none || r.rank_one != RankOne::off;
  if (!keeps_wide_tokens(r) && !q && !r.v_residual && r.v_mean != VMean::page) return;
  fail(
      "DevicePageView: recipe {} keeps state that pages and means of K and V do not hold (16-bit tokens, a centred Q, "
      "a "
      "residual, means of pages); use sink=0,recent=0,phase_switch=off,q_centre=none,rank_one=off,v_residual=off and "
      "another v_mean, or PagedCache.to_device",
      text);
}

}  // namespace

DeviceView::DeviceView(nb::object k, nb::object v, std::string recipe, nb::handle k_mean, nb::handle v_mean,
                       nb::object state)
    : k_object_(std::move(k)), v_object_(std::move(v)), state_object_(std::move(state)), recipe_(std::move(recipe)) {
  const PagesKind &kk = k_set().device_pages("DevicePageView: k").kind,
                  &vk = v_set().device_pages("DevicePageView: v").kind;
  check_view_pages("DevicePageView", kk, vk);
  if (this->state() == nullptr) check_recipe(recipe_);
  k_mean_ = import_means(k_mean, "k_mean", kk.kv_heads, kk.head_dim);
  v_mean_ = import_means(v_mean, "v_mean", vk.kv_heads, vk.head_dim);
}

void DeviceView::set_table(nb::handle page_table, nb::handle lengths) {
  Array table = import_array(page_table, "page_table", false, Place::device);
  const bool apart = table.shape[0] <= 1 || table.stride[0] >= table.shape[1];
  if (table.ndim != 2 || table.dtype != DType::i32 || (table.shape[1] > 1 && table.stride[1] != 1) || !apart) {
    fail(
        "page_table is {} of shape {} with strides [{}, {}]; int32 [sequences, pages] with contiguous rows is needed "
        "on "
        "a device: convert it",
        dtype_text(table.dtype), shape_text(table), table.stride[0], table.stride[1]);
  }
  Array given = import_dense(lengths, "lengths", DType::i64, {table.shape[0]});
  check_each(k_mean_, "k_mean", table.shape[0]);
  check_each(v_mean_, "v_mean", table.shape[0]);
  const bool resized = table_.ndim == 0 || table.shape[0] != batch();
  table_ = std::move(table);
  lengths_ = std::move(given);
  if (resized) upload_sequences();
}

void DeviceView::upload_sequences() {
  if (!k_mean_ && !v_mean_) return;
  std::vector<SequenceView> sequences(static_cast<std::size_t>(batch()));
  for (std::int64_t b = 0; b < batch(); ++b) {
    sequences[b].k_mean = mean_of(k_mean_, b);
    sequences[b].v_mean = mean_of(v_mean_, b);
  }
  const std::size_t bytes = sequences.size() * sizeof(SequenceView);
  cuda::Buffer buffer = take(cuda::Buffer::make(bytes));
  check(cuda::copy(buffer.data(), sequences.data(), bytes));
  sequences_ = std::move(buffer);
}

std::string DeviceView::recipe_for(DType q) const {
  return recipe_.empty() ? stored_recipe(q, k_set().kind(), v_set().kind(), "bf16") : recipe_;
}

CacheView DeviceView::view(const AttentionProblem& p) const {
  const std::int64_t page_size = k_set().kind().page_size;
  const std::int64_t pages = p.max_kv / page_size + (p.max_kv % page_size != 0 ? 1 : 0);
  if (p.batch > batch() || pages > columns()) {
    fail(
        "attend: the plan is for {} sequences of max_kv {}, which take {} pages each; the page table is [{}, {}]: "
        "set_table with a larger one, or plan for less",
        p.batch, p.max_kv, pages, batch(), columns());
  }
  CacheView view = view_of(k_set().device_pages("k"), v_set().device_pages("v"), p.recipe, p.q_heads);
  view.page_table = static_cast<const std::int32_t*>(table_.data);
  view.page_table_stride = std::max(table_.stride[0], table_.shape[1]);
  view.lengths = static_cast<const std::int64_t*>(lengths_.data);
  view.sequences = static_cast<const SequenceView*>(sequences_.data());
  if (const DeviceState* s = state(); s != nullptr) {
    if (p.batch > s->batch() || p.max_kv > s->max_kv()) {
      fail(
          "attend: the plan is for {} sequences of max_kv {}; what the cache kept beside its pages has room for {} of "
          "{}",
          p.batch, p.max_kv, s->batch(), s->max_kv());
    }
    s->place(view);
  }
  return view;
}

void DeviceView::write_slots(nb::handle k, nb::handle v, nb::handle slot_mapping, nb::handle rope, nb::handle counters,
                             std::uintptr_t stream) const {
  if (state() != nullptr) {
    fail(
        "write_slots: recipe {} keeps 16-bit tokens, means of pages or terms of a centred Q, which belong to sequences "
        "and not to slots; append to the PagedCache and move it again",
        recipe_);
  }
  for (const auto& [means, name] : {std::pair(&k_mean_, "k_mean"), {&v_mean_, "v_mean"}}) {
    if (*means && (*means)->ndim == 3) {
      fail(
          "write_slots: {} differs between sequences, and a slot does not say whose it is; give one [heads, d] for all "
          "(centre=static)",
          name);
    }
  }
  const Array k_array = import_rows(k, "k", true, false, Place::device),
              v_array = import_rows(v, "v", true, false, Place::device);
  const Array slots = import_dense(slot_mapping, "slot_mapping", DType::i64, {k_array.shape[1]});
  SlotWrite write;
  write.k_pages = k_set().device_writable("k pages");
  write.v_pages = v_set().device_writable("v pages");
  if (!recipe_.empty()) {  // its rule for the scales, when the bytes are the same
    const Recipe recipe = take(parse_recipe(recipe_));
    if (same_bytes(write.k_pages.kind.format, recipe.k)) write.k_pages.kind.format = recipe.k;
    if (same_bytes(write.v_pages.kind.format, recipe.v)) write.v_pages.kind.format = recipe.v;
  }
  write.k = k_array.view();
  write.v = v_array.view();
  write.slot_mapping = static_cast<const std::int64_t*>(slots.data);
  write.k_mean = mean_of(k_mean_, 0);
  write.v_mean = mean_of(v_mean_, 0);
  const auto turn = import_device_rope(rope, k_array.shape[1]);
  if (turn) write.rope = &turn->rope;
  if (!counters.is_none()) {
    const Array met = import_dense(counters, "counters", DType::i64, {3}, true);
    write.counters = static_cast<unsigned long long*>(met.data);
  }
  write.stream = reinterpret_cast<void*>(stream);
  check(mpfa::write_slots(write, take(cuda_device())));
}

}  // namespace mpfa::python
