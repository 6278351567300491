// The element codecs give the same bits in device code as on the host, and as the conversions of the hardware: what
// "a cache has the same bytes everywhere" stands on. Needs a card; without one it says SKIPPED and exits with 77.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "formats/elements.hpp"

namespace {

using mpfa::formats::E2M1;
using mpfa::formats::E4M3;
using mpfa::formats::E5M2;

constexpr int kExitSkipped = 77;
constexpr std::uint32_t kInputs = 1U << 24;

/// Input i: all 2^16 bf16 values first, then spread bit patterns of float32.
MPFA_HD float input(std::uint32_t i) {
  return mpfa::formats::bits_float(i < 65536U ? i << 16 : i * 2654435761U);
}

/// Codes of one input by every codec, and by the conversions of CUDA.
struct Codes {
  std::uint32_t e2m1, e3m0, e4m3, e5m2, f16, bf16, int8, lloyd4;
  std::uint32_t cuda_e2m1, cuda_e4m3, cuda_e5m2;
};

MPFA_HD Codes encode(float v) {
  namespace f = mpfa::formats;
  const bool nan = v != v;
  Codes c{};
  c.e2m1 = E2M1::encode(v).bits;
  c.e3m0 = f::E3M0::encode(v).bits;
  c.e4m3 = E4M3::encode(v).bits;
  c.e5m2 = E5M2::encode(v).bits;
  c.f16 = f::F16::encode(v).bits;
  c.bf16 = f::Bf16::encode(v).bits;
  c.int8 = nan ? 0U : f::Int8::encode(v).bits;
  c.lloyd4 = f::Lloyd4::encode(v).bits;
  c.cuda_e2m1 = __nv_cvt_float_to_fp4(v, __NV_E2M1, cudaRoundNearest);
  c.cuda_e4m3 = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
  c.cuda_e5m2 = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2);
  return c;
}

MPFA_HD std::uint64_t hash(const Codes& c) {
  const std::uint32_t* words = &c.e2m1;
  std::uint64_t h = 14695981039346656037ULL;
  for (unsigned i = 0; i < sizeof(Codes) / sizeof(std::uint32_t); ++i) h = (h ^ words[i]) * 1099511628211ULL;
  return h;
}

/// Decoded value of a code by every codec that has it, as one number.
MPFA_HD std::uint64_t decoded(std::uint32_t code) {
  namespace f = mpfa::formats;
  const float values[] = {E2M1::decode(code & 15U),  f::E3M0::decode(code & 15U),  E4M3::decode(code & 255U),
                          E5M2::decode(code & 255U), f::E8M0::decode(code & 255U), f::F16::decode(code),
                          f::Bf16::decode(code),     f::Lloyd4::decode(code)};
  std::uint64_t h = 14695981039346656037ULL;
  for (const float v : values) h = (h ^ f::float_bits(v)) * 1099511628211ULL;
  return h;
}

__global__ void encode_all(std::uint64_t* hashes, unsigned* hardware_differs) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= kInputs) return;
  const Codes c = encode(input(i));
  hashes[i] = hash(c);
  if (c.e2m1 != c.cuda_e2m1 || c.e4m3 != c.cuda_e4m3 || c.e5m2 != c.cuda_e5m2) atomicAdd(hardware_differs, 1U);
}

__global__ void decode_all(std::uint64_t* hashes) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 65536U) hashes[i] = decoded(i);
}

bool check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return true;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(e));
  return false;
}

}  // namespace

int main() {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no CUDA device (%s)\n", e != cudaSuccess ? cudaGetErrorString(e) : "none found");
    return kExitSkipped;
  }
  std::uint64_t* encoded = nullptr;
  std::uint64_t* values = nullptr;
  unsigned* differs = nullptr;
  if (!check(cudaMalloc(&encoded, kInputs * sizeof(std::uint64_t)), "cudaMalloc") ||
      !check(cudaMalloc(&values, 65536 * sizeof(std::uint64_t)), "cudaMalloc") ||
      !check(cudaMalloc(&differs, sizeof(unsigned)), "cudaMalloc") ||
      !check(cudaMemset(differs, 0, sizeof(unsigned)), "cudaMemset")) {
    return 1;
  }
  encode_all<<<kInputs / 256, 256>>>(encoded, differs);
  decode_all<<<65536 / 256, 256>>>(values);
  if (!check(cudaGetLastError(), "launch")) return 1;
  std::vector<std::uint64_t> from_device(kInputs), values_from_device(65536);
  unsigned hardware_differs = 0;
  if (!check(cudaMemcpy(from_device.data(), encoded, kInputs * 8, cudaMemcpyDeviceToHost), "copy") ||
      !check(cudaMemcpy(values_from_device.data(), values, 65536 * 8, cudaMemcpyDeviceToHost), "copy") ||
      !check(cudaMemcpy(&hardware_differs, differs, sizeof(unsigned), cudaMemcpyDeviceToHost), "copy")) {
    return 1;
  }
  std::uint32_t encode_differs = 0, decode_differs = 0;
  for (std::uint32_t i = 0; i < kInputs; ++i) encode_differs += hash(encode(input(i))) != from_device[i] ? 1 : 0;
  for (std::uint32_t i = 0; i < 65536U; ++i) decode_differs += decoded(i) != values_from_device[i] ? 1 : 0;
  std::printf(
      "%u inputs: %u encode otherwise on the device, %u otherwise than the hardware; 65536 codes: %u decode "
      "otherwise\n",
      kInputs, encode_differs, hardware_differs, decode_differs);
  return encode_differs + hardware_differs + decode_differs == 0 ? 0 : 1;
}
