#include "extension/device_state.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mpfa::python {

std::byte* DeviceState::add(std::int64_t bytes, const std::function<void(const std::byte*)>& set) {
  constexpr std::size_t kAlign = 16;
  const std::size_t offset = host_.size();
  host_.resize(offset + (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign);
  parts_.push_back({offset, set});
  return host_.data() + offset;
}

template <class T>
void DeviceState::put(const T*& pointer, std::int64_t count, std::int64_t room) {
  if (pointer == nullptr) return;
  const auto set = [&pointer](const std::byte* at) { pointer = reinterpret_cast<const T*>(at); };
  const auto size = static_cast<std::int64_t>(sizeof(T));
  std::byte* const to = add(room * size, set);
  if (count > 0) std::memcpy(to, pointer, static_cast<std::size_t>(count * size));
}

/// Of every page and head side by side; in the cache they are a part of its pages.
void DeviceState::put_terms(const CacheView& view) {
  const auto gather = [&](std::byte* to, const void* from, std::int64_t page, std::int64_t head, std::int64_t row) {
    for (std::int64_t i = 0; i < view.num_pages * view.kv_heads; ++i) {
      const std::int64_t at = i / view.kv_heads * page + i % view.kv_heads * head;
      std::memcpy(to + i * row, static_cast<const std::byte*>(from) + at, static_cast<std::size_t>(row));
    }
  };
  if (view.rank_one != nullptr) {
    const std::int64_t size = view.rank_one_wide ? 4 : 2, row = view.page_size * view.group;
    std::byte* const to =
        add(view.num_pages * view.kv_heads * row * size, [this](const std::byte* at) { terms_.rank_one = at; });
    gather(to, view.rank_one, view.rank_one_page_stride * size, view.rank_one_head_stride * size, row * size);
    terms_.rank_one_head_stride = row, terms_.rank_one_page_stride = view.kv_heads * row;
  }
  if (view.v_page_means != nullptr) {
    const std::int64_t row = view.head_dim_v;
    std::byte* const to = add(view.num_pages * view.kv_heads * row * 2, [this](const std::byte* at) {
      terms_.v_page_means = reinterpret_cast<const std::uint16_t*>(at);
    });
    gather(to, view.v_page_means, view.v_page_mean_page_stride * 2, view.v_page_mean_head_stride * 2, row * 2);
    terms_.v_page_mean_head_stride = row, terms_.v_page_mean_page_stride = view.kv_heads * row;
  }
}

DeviceState::DeviceState(const PagedCache& cache, std::int64_t max_kv) : max_kv_(max_kv) {
  const CacheView view = cache.view();
  const std::int64_t k_row = view.kv_heads * view.head_dim, v_row = view.kv_heads * view.head_dim_v;
  sequences_.assign(view.sequences, view.sequences + cache.config().batch);
  for (std::size_t b = 0; b < sequences_.size(); ++b) {
    SequenceView& s = sequences_[b];
    const std::int64_t wide = view.lengths[b] - s.wide_begin, room = std::max(wide, max_kv - s.wide_begin);
    put(s.k_mean, k_row, k_row);
    put(s.q_mean, cache.config().q_heads * view.head_dim, cache.config().q_heads * view.head_dim);
    put(s.v_mean, v_row, v_row);
    put(s.v_alpha, v_row, v_row);
    put(s.v_beta, v_row, v_row);
    put(s.sink_k, s.sink * k_row, s.sink * k_row);
    put(s.sink_v, s.sink * v_row, s.sink * v_row);
    put(s.wide_k, wide * k_row, room * k_row);
    put(s.wide_v, wide * v_row, room * v_row);
  }
  terms_.rank_one_wide = view.rank_one_wide, terms_.group = view.group;
  put_terms(view);
}

Status DeviceState::upload() {
  const std::size_t bytes = sequences_.size() * sizeof(SequenceView);
  const std::size_t begin = (bytes + 15) / 16 * 16;
  Result<cuda::Buffer> made = cuda::Buffer::make(begin + host_.size());
  if (!made.ok()) return made.status();
  memory_ = std::move(made).value();
  auto* const device = static_cast<std::byte*>(memory_.data());
  for (const Part& part : parts_) part.set(device + begin + part.offset);
  MPFA_RETURN_IF_ERROR(cuda::copy(device, sequences_.data(), bytes));
  if (!host_.empty()) MPFA_RETURN_IF_ERROR(cuda::copy(device + begin, host_.data(), host_.size()));
  host_ = {};
  parts_ = {};
  return {};
}

void DeviceState::place(CacheView& view) const {
  view.sequences = static_cast<const SequenceView*>(memory_.data());
  view.rank_one = terms_.rank_one, view.rank_one_wide = terms_.rank_one_wide, view.group = terms_.group;
  view.rank_one_page_stride = terms_.rank_one_page_stride, view.rank_one_head_stride = terms_.rank_one_head_stride;
  view.v_page_means = terms_.v_page_means;
  view.v_page_mean_page_stride = terms_.v_page_mean_page_stride;
  view.v_page_mean_head_stride = terms_.v_page_mean_head_stride;
}

}  // namespace mpfa::python
