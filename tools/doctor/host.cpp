#include "doctor/host.hpp"

#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

#include <array>
#include <cstring>
#endif

namespace mpfa::cli {
namespace {

#if defined(__x86_64__) || defined(__i386__)

std::string processor_name() {
  constexpr unsigned kFirst = 0x80000002U, kLast = 0x80000004U;
  if (__get_cpuid_max(0x80000000U, nullptr) < kLast) return "unknown";
  std::array<char, 49> brand{};
  for (unsigned leaf = kFirst; leaf <= kLast; ++leaf) {
    std::array<unsigned, 4> words{};
    __get_cpuid(leaf, &words[0], &words[1], &words[2], &words[3]);
    std::memcpy(brand.data() + (leaf - kFirst) * sizeof words, words.data(), sizeof words);
  }
  const std::string name(brand.data());
  const std::size_t begin = name.find_first_not_of(' ');
  return begin == std::string::npos ? "unknown" : name.substr(begin, name.find_last_not_of(' ') - begin + 1);
}

// __builtin_cpu_supports takes literals only.
std::vector<std::pair<std::string, bool>> processor_features() {
  return {{"avx2", __builtin_cpu_supports("avx2") != 0},
          {"fma", __builtin_cpu_supports("fma") != 0},
          {"avx512f", __builtin_cpu_supports("avx512f") != 0},
          {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
          {"avxvnni", __builtin_cpu_supports("avxvnni") != 0},
          {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
          {"avx512bf16", __builtin_cpu_supports("avx512bf16") != 0},
          {"amx-tile", __builtin_cpu_supports("amx-tile") != 0},
          {"amx-int8", __builtin_cpu_supports("amx-int8") != 0},
          {"amx-bf16", __builtin_cpu_supports("amx-bf16") != 0}};
}

#else

std::string processor_name() {
  return "unknown";
}
std::vector<std::pair<std::string, bool>> processor_features() {
  return {};
}

#endif

}  // namespace

Host inspect_host() {
  return {processor_name(), processor_features(), std::thread::hardware_concurrency()};
}

}  // namespace mpfa::cli
