#include "extension/arrays.hpp"

#include <fmt/ranges.h>
#include <nanobind/stl/string.h>

#include "cache/convert.hpp"
#include "extension/device_arrays.hpp"
#include "extension/exchange.hpp"

namespace mpfa::python {

namespace {

constexpr int kCpu = 1, kCuda = 2, kPinned = 3, kManaged = 13;  // DLPack device types

std::string type_text(nb::handle x) {
  return nb::cast<std::string>(nb::str(x.type().attr("__name__")));
}

bool is_bfloat16_numpy(nb::handle x) {
  if (!nb::hasattr(x, "dtype") || !nb::hasattr(x, "view")) return false;
  const nb::object dtype = x.attr("dtype");
  return nb::cast<std::string>(nb::str(nb::handle(dtype))) == "bfloat16";
}

std::optional<DType> dtype_of(nb::dlpack::dtype t) {
  using Code = nb::dlpack::dtype_code;
  if (t.lanes != 1) return std::nullopt;
  const auto is = [&](Code code, int bits) { return t.code == static_cast<std::uint8_t>(code) && t.bits == bits; };
  if (is(Code::Float, 32)) return DType::f32;
  if (is(Code::Bfloat, 16)) return DType::bf16;
  if (is(Code::Float, 16)) return DType::f16;
  if (is(Code::Float, 64)) return DType::f64;
  if (is(Code::UInt, 8) || is(Code::Bool, 8)) return DType::u8;
  if (is(Code::Int, 32)) return DType::i32;
  if (is(Code::Int, 64)) return DType::i64;
  return std::nullopt;
}

/// The DLPack import; fills everything but dtype, which NumPy's bfloat16 does not carry.
bool import_dlpack(nb::handle x, bool writable, Array& a) {
  if (writable) {
    nb::ndarray<> w;
    if (!nb::try_cast(x, w)) return false;
    a.owner = nb::ndarray<nb::ro>(w);
  } else if (!nb::try_cast(x, a.owner)) {
    return false;
  }
  return true;
}

/// What `a.owner` holds.
nb::dlpack::dltensor tensor_of(const Array& a) {
  nb::dlpack::dltensor t{};
  t.data = const_cast<void*>(a.owner.data());
  t.device = {a.owner.device_type(), a.owner.device_id()};
  t.ndim = static_cast<std::int32_t>(a.owner.ndim());
  t.dtype = a.owner.dtype();
  t.shape = const_cast<std::int64_t*>(a.owner.shape_ptr());
  t.strides = const_cast<std::int64_t*>(a.owner.stride_ptr());
  return t;
}

void check_place(const nb::dlpack::dltensor& t, const char* name, Place place, Array& a) {
  const int type = t.device.device_type;
  const bool host = type == kCpu || type == kPinned;
  a.on_device = type == kCuda || type == kManaged;
  if (place == Place::device && host) {
    fail("{} is in host memory; an array in the memory of the current CUDA device is needed: copy it there", name);
  }
  if (host || (a.on_device && place != Place::host)) return;
  if (place != Place::host) {
    fail("{} is on a device that is no CUDA device (DLPack device type {}); copy it to one", name, type);
  }
  fail("{} is on another device (DLPack device type {}); this call computes on the CPU: copy it there first{}", name,
       type, a.on_device ? ", or attend on the GPU with mpfa.DevicePageView" : "");
}

}  // namespace

const char* dtype_text(DType t) {
  constexpr const char* kNames[] = {"float32", "float64", "bfloat16", "float16", "uint8", "int32", "int64"};
  return kNames[static_cast<int>(t)];
}

bool is_float16_or_32(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}

std::string shape_text(const Array& a) {
  return fmt::format("[{}]", fmt::join(a.shape.begin(), a.shape.begin() + a.ndim, ", "));
}

Array import_array(nb::handle x, const char* name, bool writable, Place place) {
  Array a;
  a.object = nb::borrow(x);
  bool bf16_bits = false;
  nb::dlpack::dltensor t{};
  CudaInterface interface;
  if (import_exchange(x, t)) {
  } else if (place != Place::host && import_cuda_interface(x, name, writable, interface)) {
    t = interface.tensor();
  } else if (place != Place::host && import_device_dlpack(x, a.owner)) {
    t = tensor_of(a);
  } else {
    if (!import_dlpack(x, writable, a)) {
      bf16_bits = is_bfloat16_numpy(x);  // NumPy exports its own dtypes only, so the bits go as uint16
      if (!bf16_bits || !import_dlpack(x.attr("view")("uint16"), writable, a)) {
        const char* const wanted = place == Place::device
                                       ? "a CUDA array (torch, __cuda_array_interface__ or __dlpack__)"
                                       : "a CPU array of NumPy, torch or another DLPack library";
        fail("{} is a {}{}; {} is needed{}", name, type_text(x), writable ? " that cannot be written" : "", wanted,
             writable ? ", not a read-only one" : "");
      }
    }
    t = tensor_of(a);
  }
  check_place(t, name, place, a);
  const auto dtype = bf16_bits ? std::optional(DType::bf16) : dtype_of(t.dtype);
  if (!dtype) {
    fail(
        "{} has an element type of {} bits (DLPack code {}); float32, bfloat16, float16, float64, uint8, bool, int32 "
        "and int64 are known",
        name, static_cast<int>(t.dtype.bits), static_cast<int>(t.dtype.code));
  }
  if (t.ndim < 1 || t.ndim > 4) fail("{} has {} dimensions; 1 to 4 are allowed", name, t.ndim);
  a.dtype = *dtype;
  a.boolean = t.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bool);
  a.ndim = t.ndim;
  std::int64_t contiguous = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    a.shape[i] = t.shape[i];
    a.stride[i] = t.strides == nullptr ? contiguous : t.strides[i];
    contiguous *= t.shape[i];
  }
  if (t.data == nullptr && contiguous != 0) fail("{} has no memory of its own (a fake or meta tensor?)", name);
  a.data = t.data == nullptr ? nullptr : static_cast<char*>(t.data) + t.byte_offset;
  return a;
}

Array import_rows(nb::handle x, const char* name, bool ragged, bool writable, Place place) {
  Array a = import_array(x, name, writable, place);
  const int wanted = ragged ? 3 : 4;
  if (a.ndim != wanted) {
    fail("{} has shape {}; {} is needed", name, shape_text(a),
         ragged ? "[rows, heads, head_dim]"
                : "[batch, rows, heads, head_dim] (or [rows, heads, head_dim] with cu_seqlens)");
  }
  if (ragged) {
    a.shape = {1, a.shape[0], a.shape[1], a.shape[2]};
    a.stride = {a.stride[0] * a.shape[1], a.stride[0], a.stride[1], a.stride[2]};
    a.ndim = 4;
  }
  return a;
}

Array import_dense(nb::handle x, const char* name, DType dtype, const std::vector<std::int64_t>& shape, bool writable) {
  Array a = import_array(x, name, writable, Place::device);
  bool fits = a.dtype == dtype && a.ndim == static_cast<int>(shape.size());
  for (int i = 0; fits && i < a.ndim; ++i) fits = shape[i] == -1 || shape[i] == a.shape[i];
  if (!fits) {
    std::vector<std::string> wanted;
    for (const std::int64_t n : shape) wanted.push_back(n == -1 ? "any" : std::to_string(n));
    fail("{} is {} of shape {}; {} [{}] is needed: convert it", name, dtype_text(a.dtype), shape_text(a),
         dtype_text(dtype), fmt::join(wanted, ", "));
  }
  std::int64_t step = 1;
  for (int i = a.ndim - 1; i >= 0; --i) {
    if (a.shape[i] > 1 && a.stride[i] != step) {
      fail("{} has strides [{}] for shape {}; pass a contiguous array", name,
           fmt::join(a.stride.begin(), a.stride.begin() + a.ndim, ", "), shape_text(a));
    }
    step *= a.shape[i];
  }
  return a;
}

std::vector<float> import_floats(nb::handle x, const char* name, const std::vector<std::int64_t>& shape) {
  const Array a = import_array(x, name);
  if (!is_float16_or_32(a.dtype) && a.dtype != DType::f64) {
    fail("{} is {}; a floating type is needed", name, dtype_text(a.dtype));
  }
  if (!std::equal(shape.begin(), shape.end(), a.shape.begin(), a.shape.begin() + a.ndim)) {
    fail("{} has shape {}; [{}] is needed", name, shape_text(a), fmt::join(shape, ", "));
  }
  std::vector<float> values(static_cast<std::size_t>(a.shape[0] * a.shape[1] * a.shape[2] * a.shape[3]));
  float* out = values.data();
  for (std::int64_t i = 0; i < a.shape[0]; ++i) {
    for (std::int64_t j = 0; j < a.shape[1]; ++j) {
      for (std::int64_t k = 0; k < a.shape[2]; ++k) {
        load_row(a.data, a.dtype, i * a.stride[0] + j * a.stride[1] + k * a.stride[2], a.stride[3], a.shape[3], out);
        out += a.shape[3];
      }
    }
  }
  return values;
}

std::optional<std::vector<std::int64_t>> import_integers(nb::handle x, const char* name) {
  if (x.is_none()) return std::nullopt;
  if (nb::isinstance<nb::list>(x) || nb::isinstance<nb::tuple>(x)) {
    std::vector<std::int64_t> values;
    for (nb::handle item : x) {
      std::int64_t value = 0;
      if (nb::isinstance<nb::bool_>(item) || !nb::try_cast(item, value)) {
        fail("{} holds a {}; integers are needed", name, type_text(item));
      }
      values.push_back(value);
    }
    return values;
  }
  const Array a = import_array(x, name);
  if (a.ndim != 1 || (a.dtype != DType::i32 && a.dtype != DType::i64)) {
    fail("{} is {} of shape {}; one dimension of int32 or int64 is needed", name, dtype_text(a.dtype), shape_text(a));
  }
  std::vector<std::int64_t> values(static_cast<std::size_t>(a.shape[0]));
  for (std::int64_t i = 0; i < a.shape[0]; ++i) {
    values[i] = a.dtype == DType::i32 ? static_cast<const std::int32_t*>(a.data)[i * a.stride[0]]
                                      : static_cast<const std::int64_t*>(a.data)[i * a.stride[0]];
  }
  return values;
}

}  // namespace mpfa::python
