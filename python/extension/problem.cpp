#include "extension/problem.hpp"

#include <nanobind/stl/string.h>

#include "attention/names.hpp"
#include "mpfa/recipe.hpp"

namespace mpfa::python {

namespace {

DType float_type(const std::string& name, const char* field) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    if (name == dtype_text(t)) return t;
  }
  fail("{} '{}' is not known; use float32, bfloat16 or float16", field, name);
}

MaskTensor mask_of(const std::string& name) {
  if (name == "none") return MaskTensor::none;
  if (name == "boolean") return MaskTensor::boolean;
  if (name == "additive") return MaskTensor::additive;
  fail("mask '{}' is not known; use none, boolean or additive", name);
}

}  // namespace

AttentionProblem import_problem(const nb::tuple& fields) {
  std::size_t at = 0;
  const auto text = [&] { return nb::cast<std::string>(fields[at++]); };
  const auto integer = [&] { return nb::cast<std::int64_t>(fields[at++]); };
  const auto number = [&] { return nb::cast<float>(fields[at++]); };
  const auto flag = [&] { return nb::cast<bool>(fields[at++]); };
  AttentionProblem p;
  p.recipe = take(parse_recipe(text()));
  p.batch = integer();
  p.max_q = integer();
  p.total_q = integer();
  p.max_kv = integer();
  p.q_heads = integer();
  p.kv_heads = integer();
  p.head_dim = integer();
  p.head_dim_v = integer();
  p.page_size = integer();
  p.q_dtype = float_type(text(), "q_dtype");
  p.out_dtype = float_type(text(), "out_dtype");
  p.softmax_scale = number();
  p.softcap = number();
  p.causal = flag();
  p.window_left = integer();
  p.window_right = integer();
  p.sinks = flag();
  p.alibi = flag();
  p.mask = mask_of(text());
  p.batch_invariant = flag();
  return p;
}

Result<Device> device_kind(const std::string& name) {
  if (name == "cuda") return cuda_device();
  for (const Device d : {Device::cpu, Device::sm90, Device::sm100, Device::sm120}) {
    if (name == device_name(d)) return d;
  }
  fail("device '{}' is not known; use cpu, cuda (the current CUDA device), sm90, sm100 or sm120", name);
}

}  // namespace mpfa::python
