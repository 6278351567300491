#include "attend/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "io/safetensors.hpp"

namespace mpfa::cli {
namespace {

using io::FileType;
using io::SafetensorsFile;
using io::TensorEntry;

Status refuse(std::string message) {
  return {StatusCode::invalid_argument, "attend: " + std::move(message)};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<DType> operand_dtype(FileType t) {
  switch (t) {
    case FileType::f32: return DType::f32;
    case FileType::bf16: return DType::bf16;
    case FileType::f16: return DType::f16;
    default: return std::nullopt;
  }
}

Status read_operand(const SafetensorsFile& file, const char* name, Operand& operand) {
  const TensorEntry* const entry = file.find(name);
  if (entry == nullptr) return refuse(fmt::format("the file has no tensor {}; it must hold q, k and v", name));
  const std::optional<DType> dtype = operand_dtype(entry->type);
  if (!dtype) {
    return refuse(fmt::format("{} is {}; allowed: F32, BF16, F16", name, io::file_type_name(entry->type)));
  }
  const std::size_t rank = entry->shape.size();
  if ((rank != 3 && rank != 4) || entry->begin == entry->end) {
    return refuse(
        fmt::format("{} has shape {}; [batch, tokens, heads, head_dim] or [tokens, heads, head_dim] without "
                    "a zero is needed",
                    name, shape_text(entry->shape)));
  }
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  std::copy(entry->shape.begin(), entry->shape.end(), shape.begin() + (4 - rank));
  Result<std::vector<std::byte>> bytes = file.read(*entry);
  if (!bytes.ok()) return bytes.status();
  operand.bytes = std::move(bytes).value();
  operand.view = contiguous(std::as_const(operand.bytes).data(), *dtype, shape);
  return {};
}

Status read_floats(const SafetensorsFile& file, const char* name, const std::vector<std::int64_t>& shape,
                   std::vector<float>& values) {
  const TensorEntry* const entry = file.find(name);
  if (entry == nullptr) return {};
  if (entry->type != FileType::f32 || entry->shape != shape) {
    return refuse(fmt::format("{} is {} {}; F32 {} is needed", name, io::file_type_name(entry->type),
                              shape_text(entry->shape), shape_text(shape)));
  }
  const Result<std::vector<std::byte>> bytes = file.read(*entry);
  if (!bytes.ok()) return bytes.status();
  values.resize(bytes.value().size() / sizeof(float));
  std::memcpy(values.data(), bytes.value().data(), bytes.value().size());
  return {};
}

Status check_together(const TensorView& q, const TensorView& k, const TensorView& v) {
  if (q.shape[0] != k.shape[0] || k.shape[0] != v.shape[0]) {
    return refuse(
        fmt::format("q, k and v have batch {}, {} and {}; one batch is needed", q.shape[0], k.shape[0], v.shape[0]));
  }
  if (k.shape[1] != v.shape[1] || k.shape[2] != v.shape[2]) {
    return refuse(fmt::format("k has {} tokens and {} heads, v has {} and {}; they must agree", k.shape[1], k.shape[2],
                              v.shape[1], v.shape[2]));
  }
  if (q.shape[3] != k.shape[3]) {
    return refuse(fmt::format("q has head_dim {} and k has {}; they must agree", q.shape[3], k.shape[3]));
  }
  if (q.shape[2] % k.shape[2] != 0) {
    return refuse(fmt::format("q has {} heads and k has {}; a multiple is needed", q.shape[2], k.shape[2]));
  }
  return {};
}

}  // namespace

Result<Inputs> read_inputs(const std::string& path) {
  const Result<SafetensorsFile> opened = SafetensorsFile::open(path);
  if (!opened.ok()) return opened.status();
  const SafetensorsFile& file = opened.value();
  Inputs in;
  MPFA_RETURN_IF_ERROR(read_operand(file, "q", in.q));
  MPFA_RETURN_IF_ERROR(read_operand(file, "k", in.k));
  MPFA_RETURN_IF_ERROR(read_operand(file, "v", in.v));
  const TensorView &q = in.q.view, &k = in.k.view, &v = in.v.view;
  MPFA_RETURN_IF_ERROR(check_together(q, k, v));
  MPFA_RETURN_IF_ERROR(read_floats(file, "k_mean", {k.shape[2], k.shape[3]}, in.k_mean));
  MPFA_RETURN_IF_ERROR(read_floats(file, "q_mean", {q.shape[2], q.shape[3]}, in.q_mean));
  MPFA_RETURN_IF_ERROR(read_floats(file, "v_mean", {v.shape[2], v.shape[3]}, in.v_mean));
  MPFA_RETURN_IF_ERROR(read_floats(file, "sinks", {q.shape[2]}, in.sinks));
  return in;
}

}  // namespace mpfa::cli
