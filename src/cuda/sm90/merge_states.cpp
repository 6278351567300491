#include "cuda/sm90/merge_states.hpp"

#include <cstdint>
#include <limits>

#include "attention/names.hpp"
#include "cuda/sm90/device.hpp"
#include "cuda/sm90/merge/launch.h"
#include "cuda/sm90/row_format.hpp"

namespace mpfa::sm90 {
namespace {

constexpr const char* kCall = "merge_states";

template <class... Args>
Status invalid(fmt::format_string<Args...> text, Args&&... args) {
  return refused(StatusCode::invalid_argument, kCall, text, std::forward<Args>(args)...);
}

template <class View>
Status check_tensor(const char* name, const View& x, const std::array<std::int64_t, 4>& shape) {
  if (x.dtype != DType::f32 && x.dtype != DType::bf16 && x.dtype != DType::f16) {
    return invalid("{} is {}; it must be f32, bf16 or f16", name, dtype_name(x.dtype));
  }
  if (x.shape != shape) {
    return invalid("{} is [{}, {}, {}, {}] and a [{}, {}, {}, {}]; they must be equal", name, x.shape[0], x.shape[1],
                   x.shape[2], x.shape[3], shape[0], shape[1], shape[2], shape[3]);
  }
  if (shape[3] > 1 && x.stride[3] != 1) {
    return invalid("{} has stride {} along the head dim; it must be 1", name, x.stride[3]);
  }
  if (x.data == nullptr) return invalid("{} is null", name);
  return {};
}

/// `out` may be an input only as it is: a warp reads its row before it writes it.
Status check_place(const char* name, const TensorView& x, const MutableTensorView& out) {
  if (x.data != out.data || (x.dtype == out.dtype && x.stride == out.stride)) return {};
  return invalid("out begins where {} does and has another dtype or other strides; give it memory of its own", name);
}

}  // namespace

Status merge_states(const StateMerge& m) {
  const auto& shape = m.a.shape;
  std::int64_t rows = 1;
  for (const std::int64_t n : {shape[0], shape[1], shape[2], shape[3]}) {
    if (n < 0 || __builtin_mul_overflow(rows, n == 0 ? 1 : n, &rows)) {
      return invalid("a is [{}, {}, {}, {}]", shape[0], shape[1], shape[2], shape[3]);
    }
  }
  rows = shape[0] * shape[1] * shape[2];
  if (rows > std::numeric_limits<std::int32_t>::max() || shape[3] > std::numeric_limits<std::int32_t>::max()) {
    return invalid("a has {} rows of {}; split the call", rows, shape[3]);
  }
  if (const Result<int> device = current_device(); !device.ok()) return device.status();
  if (rows == 0 || shape[3] == 0) return {};
  MPFA_RETURN_IF_ERROR(check_tensor("a", m.a, shape));
  MPFA_RETURN_IF_ERROR(check_tensor("b", m.b, shape));
  MPFA_RETURN_IF_ERROR(check_tensor("out", m.out, shape));
  MPFA_RETURN_IF_ERROR(check_place("a", m.a, m.out));
  MPFA_RETURN_IF_ERROR(check_place("b", m.b, m.out));
  if (m.lse_a == nullptr || m.lse_b == nullptr) return invalid("{} is null", m.lse_a == nullptr ? "lse_a" : "lse_b");
  MPFA_RETURN_IF_ERROR(check_device_memory(
      kCall,
      {{"a", m.a.data}, {"b", m.b.data}, {"out", m.out.data}, {"lse_a", m.lse_a}, {"lse_b", m.lse_b}, {"lse", m.lse}}));
  MPFA_RETURN_IF_ERROR(check_stream(kCall, m.stream));
  MergeParams p{};
  const auto operand = [](const auto& x) {
    return MergeOperand<decltype(x.data)>{x.data, x.stride[0], x.stride[1], x.stride[2], x.dtype};
  };
  p.a = operand(m.a), p.b = operand(m.b), p.out = operand(m.out);
  p.lse_a = m.lse_a, p.lse_b = m.lse_b, p.lse = m.lse;
  p.all = static_cast<std::int32_t>(rows), p.rows = static_cast<std::int32_t>(shape[1]);
  p.heads = static_cast<std::int32_t>(shape[2]), p.d = static_cast<std::int32_t>(shape[3]);
  return launch_status(kCall, launch_merge(p, static_cast<cudaStream_t>(m.stream)));
}

}  // namespace mpfa::sm90
