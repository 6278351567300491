#include "extension/rope.hpp"

namespace mpfa::python {

namespace {

/// Integers of one or two dimensions, row after row; None gives none.
std::vector<std::int64_t> import_positions(nb::handle x, const char* name, std::int64_t count) {
  std::vector<std::int64_t> values;
  if (x.is_none()) return values;
  const bool list = nb::isinstance<nb::list>(x) || nb::isinstance<nb::tuple>(x);
  const bool nested = list && nb::len(x) > 0 && !nb::isinstance<nb::int_>(x[nb::int_(0)]);
  if (nested) {
    for (nb::handle row : x) {
      const auto part = import_integers(row, name);
      if (part) values.insert(values.end(), part->begin(), part->end());
    }
  } else if (list) {
    values = *import_integers(x, name);
  } else {
    const Array a = import_array(x, name);
    if (a.ndim > 2 || (a.dtype != DType::i32 && a.dtype != DType::i64)) {
      fail("{} is {} of shape {}; int32 or int64 [sequences, tokens] is needed", name, dtype_text(a.dtype),
           shape_text(a));
    }
    for (std::int64_t i = 0; i < a.shape[0]; ++i) {
      for (std::int64_t j = 0; j < a.shape[1]; ++j) {
        const std::int64_t at = i * a.stride[0] + j * a.stride[1];
        values.push_back(a.dtype == DType::i32 ? static_cast<const std::int32_t*>(a.data)[at]
                                               : static_cast<const std::int64_t*>(a.data)[at]);
      }
    }
  }
  if (static_cast<std::int64_t>(values.size()) != count) {
    fail("{} has {} entries; one for each of the {} rows is needed", name, values.size(), count);
  }
  return values;
}

}  // namespace

void import_tables(nb::handle cos, nb::handle sin, const char* cos_name, const char* sin_name, bool interleaved,
                   RopeInput& to, Place place) {
  to.cos = import_array(cos, cos_name, false, place);
  to.sin = import_array(sin, sin_name, false, place);
  if (to.cos.ndim != 2 || to.sin.ndim != 2) {
    fail("{} has shape {}, {} has shape {}; both must be [positions, rotary_dim / 2]", cos_name, shape_text(to.cos),
         sin_name, shape_text(to.sin));
  }
  to.rope.style = interleaved ? RopeStyle::interleaved : RopeStyle::half;
  to.rope.cos = to.cos.view();
  to.rope.sin = to.sin.view();
}

std::unique_ptr<RopeInput> import_rope(nb::handle rope, std::int64_t tokens, bool ragged) {
  if (rope.is_none()) return nullptr;
  auto in = std::make_unique<RopeInput>();
  const auto item = [&](int i) { return nb::object(rope[nb::int_(i)]); };
  import_tables(item(0), item(1), "rope.cos", "rope.sin", nb::cast<bool>(item(2)), *in);
  in->rope.begin = nb::cast<std::int64_t>(item(3));
  in->positions = import_positions(item(4), "positions", tokens);
  if (!in->positions.empty()) in->rope.positions = in->positions.data();
  if (item(5).is_none()) return in;
  in->q = import_rows(item(5), "rotate_q", ragged);
  in->q_out = import_rows(item(6), "rotate_q", ragged, true);
  in->rope.q = in->q.view();
  in->rope.q_out = in->q_out.mutable_view();
  in->q_positions = import_positions(item(7), "q_positions", in->q.shape[0] * in->q.shape[1]);
  if (!in->q_positions.empty()) in->rope.q_positions = in->q_positions.data();
  return in;
}

std::unique_ptr<RopeInput> import_device_rope(nb::handle rope, std::int64_t tokens) {
  if (rope.is_none()) return nullptr;
  auto in = std::make_unique<RopeInput>();
  const auto item = [&](int i) { return nb::object(rope[nb::int_(i)]); };
  const auto positions = [](nb::handle x, const char* name, std::int64_t count) -> const std::int64_t* {
    if (x.is_none()) return nullptr;
    return static_cast<const std::int64_t*>(import_dense(x, name, DType::i64, {count}).data);
  };
  import_tables(item(0), item(1), "rope.cos", "rope.sin", nb::cast<bool>(item(2)), *in, Place::device);
  in->rope.begin = nb::cast<std::int64_t>(item(3));
  in->rope.positions = positions(item(4), "positions", tokens);
  if (item(5).is_none()) return in;
  in->q = import_rows(item(5), "rotate_q", true, false, Place::device);
  in->q_out = import_rows(item(6), "rotate_q", true, true, Place::device);
  in->rope.q = in->q.view();
  in->rope.q_out = in->q_out.mutable_view();
  in->rope.q_positions = positions(item(7), "q_positions", in->q.shape[1]);
  return in;
}

}  // namespace mpfa::python
