// The cache of Python: sequences and pages edited without attention.
#include <algorithm>
#include <span>

#include "extension/cache.hpp"
#include "extension/rope.hpp"

namespace mpfa::python {

namespace {

std::vector<std::int32_t> import_ids(nb::handle pages) {
  const auto ids = import_integers(pages, "pages");
  if (!ids) fail("pages is None; page ids are needed");
  std::vector<std::int32_t> ids32;
  for (const std::int64_t id : *ids) ids32.push_back(narrow(id, "pages"));
  return ids32;
}

/// k or v [tokens, heads, head dim] as the [1, tokens, heads, head dim] of the library.
Array import_tokens(nb::handle x, const char* name, std::size_t tokens) {
  const Array a = import_rows(x, name, true);
  if (static_cast<std::size_t>(a.shape[1]) != tokens) {
    fail("write_slots: slot_mapping has {} entries, {} has {} tokens; one slot each is needed, -1 to skip a token",
         tokens, name, a.shape[1]);
  }
  return a;
}

}  // namespace

void Cache::free_sequence(std::int64_t sequence) {
  check(exclusively([&] { return cache_.free_sequence(sequence); }));
}

void Cache::fork(std::int64_t source, std::int64_t target, std::int64_t tokens) {
  check(exclusively([&] { return cache_.fork(source, target, tokens); }));
}

void Cache::truncate(std::int64_t sequence, std::int64_t tokens) {
  check(exclusively([&] { return cache_.truncate(sequence, tokens); }));
}

std::int64_t Cache::pages_of(std::int64_t sequence) const {
  if (sequence < 0 || sequence >= cache_.config().batch) return 0;
  return pages_for(cache_.lengths()[sequence], 1, cache_.config().page_size);
}

void Cache::shift(std::int64_t sequence, std::int64_t from, std::int64_t delta, nb::handle rope) {
  const auto turn = import_rope(rope, 0, false);
  if (!turn) fail("shift: rope is None; the tables that the keys were rotated with are needed");
  check(exclusively([&] {
    return with_room([&] { return cache_.shift(sequence, from, delta, turn->rope); },
                     [&] { return pages_of(sequence); });
  }));
}

void Cache::remove(std::int64_t sequence, std::int64_t begin, std::int64_t end, nb::handle rope) {
  const auto turn = import_rope(rope, 0, false);
  check(exclusively([&] {
    return with_room([&] { return cache_.remove(sequence, begin, end, turn ? &turn->rope : nullptr); },
                     [&] { return pages_of(sequence); });
  }));
}

void Cache::write_slots(nb::handle k, nb::handle v, nb::handle slot_mapping, nb::handle rope) {
  const auto slots = import_integers(slot_mapping, "slot_mapping");
  if (!slots) fail("slot_mapping is None; one slot per token is needed");
  const Array k_array = import_tokens(k, "k", slots->size());
  const auto turn = import_rope(rope, static_cast<std::int64_t>(slots->size()), true);
  const Rope* const turned = turn ? &turn->rope : nullptr;
  if (v.is_none()) return check(exclusively([&] { return cache_.write_slots(k_array.view(), *slots, turned); }));
  const Array v_array = import_tokens(v, "v", slots->size());
  check(exclusively([&] { return cache_.write_slots(k_array.view(), v_array.view(), *slots, turned); }));
}

void Cache::free_slots(nb::handle pages, nb::handle generations) {
  const std::vector<std::int32_t> ids = import_ids(pages);
  const auto expected = import_integers(generations, "generations");
  check(exclusively([&] { return cache_.free_slots(ids, expected); }));
}

nb::bytes Cache::save(std::int64_t sequence) {
  std::vector<std::byte> blob;
  check(exclusively([&] { return cache_.save(blob, sequence); }));
  return nb::bytes(blob.data(), blob.size());
}

void Cache::load(std::int64_t sequence, nb::bytes data) {
  const std::span blob(static_cast<const std::byte*>(data.data()), data.size());
  // The page count inside the bytes is checked by load; that of their size is never less.
  const auto missing = [&] {
    const std::int64_t page_bytes = cache_.storage_bytes() / cache_.config().num_pages;
    return static_cast<std::int64_t>(blob.size()) / page_bytes - cache_.free_pages();
  };
  check(exclusively([&] { return with_room([&] { return cache_.load(blob, sequence); }, missing); }));
}

void Cache::import_pages(std::int64_t sequence, const PageSet& k, const PageSet& v, nb::handle pages,
                         std::int64_t tokens) {
  const std::vector<std::int32_t> ids = import_ids(pages);
  const auto missing = [&] { return static_cast<std::int64_t>(ids.size()) - cache_.free_pages(); };
  check(exclusively([&] {
    return with_room([&] { return cache_.import_pages(sequence, k.pages(), v.pages(), ids, tokens); }, missing);
  }));
}

bool Cache::has_state() {
  return ask([](const PagedCache& c) {
    const Recipe& r = c.config().recipe;
    return keeps_wide_tokens(r) || r.q_centre != QCentre::none || r.v_mean == VMean::page || r.v_residual;
  });
}

std::unique_ptr<DeviceState> Cache::device_state(std::int64_t max_kv) {
  auto state = ask([&](const PagedCache& c) { return std::make_unique<DeviceState>(c, max_kv); });
  check(state->upload());
  return state;
}

void Cache::export_pages(std::int64_t sequence, const PageSet& k, const PageSet& v, nb::handle pages, bool packed) {
  const std::vector<std::int32_t> ids = import_ids(pages);
  const MutablePages k_to = k.writable("k pages"), v_to = v.writable("v pages");
  check(exclusively([&]() -> Status {
    const CacheView view = cache_.view();
    if (sequence < 0 || sequence >= cache_.config().batch) {
      return {StatusCode::out_of_range, fmt::format("export_pages: sequence {} is out of range; ids are in 0..{}",
                                                    sequence, cache_.config().batch - 1)};
    }
    const SequenceView& own_state = view.sequences[sequence];
    const std::int64_t tokens = packed ? own_state.packed_end : view.lengths[sequence];
    if (!packed && (own_state.packed_end != tokens || own_state.sink > 0)) {
      return {StatusCode::invalid_argument,
              fmt::format("export_pages: sequence {} keeps some of its tokens in 16 bits, which pages do not hold; use "
                          "save, or a recipe without such tokens",
                          sequence)};
    }
    if (!packed && view.v_page_means != nullptr) {
      return {
          StatusCode::invalid_argument,
          "export_pages: the recipe keeps means of V beside its pages (v_mean=page), which pages alone do not hold; "
          "use save, or another v_mean"};
    }
    const std::span<const std::int32_t> own(view.page_table + sequence * view.page_table_stride,
                                            static_cast<std::size_t>(pages_for(tokens, 1, view.page_size)));
    const auto to = std::span(ids).first(packed ? std::min(own.size(), ids.size()) : ids.size());
    MPFA_RETURN_IF_ERROR(copy_pages(k_pages(view), k_to, own, to, tokens));
    return copy_pages(v_pages(view), v_to, own, to, tokens);
  }));
}

nb::tuple Cache::copy_means(nb::handle k, nb::handle v) {
  const Array k_array = import_array(k, "k means", true), v_array = import_array(v, "v means", true);
  bool any_k = false, any_v = false;
  check(exclusively([&]() -> Status {
    const CacheView view = cache_.view();
    const auto copy = [&](const float* mean, const Array& to, std::int64_t b, bool& any) {
      const std::int64_t n = to.shape[1] * to.shape[2];
      float* const row = static_cast<float*>(to.data) + b * n;
      any = any || mean != nullptr;
      mean == nullptr ? void(std::fill_n(row, n, 0.0F)) : void(std::copy_n(mean, n, row));
    };
    for (std::int64_t b = 0; b < cache_.config().batch; ++b) {
      copy(view.sequences[b].k_mean, k_array, b, any_k);
      copy(view.sequences[b].v_mean, v_array, b, any_v);
    }
    return {};
  }));
  return nb::make_tuple(any_k, any_v);
}

void Cache::copy_page(std::int64_t from, std::int64_t to) {
  check(exclusively([&] { return cache_.copy_page(from, to); }));
}

void Cache::set_pages(std::int64_t sequence, nb::handle pages, nb::handle generations) {
  const std::vector<std::int32_t> ids = import_ids(pages);
  const auto expected = import_integers(generations, "generations");
  check(exclusively([&] { return cache_.set_pages(sequence, ids, expected); }));
}

std::int64_t Cache::page_generation(std::int64_t page) {
  return take(ask([&](const PagedCache& c) { return c.page_generation(page); }));
}

}  // namespace mpfa::python
