// The command line. Exit status: 0 done, 1 a fault of the program or the machine, 2 input that is not accepted.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "attend/attend.hpp"
#include "doctor/doctor.hpp"
#include "matrix/report.hpp"
#include "mpfa/status.hpp"
#include "tables.hpp"

namespace mpfa::cli {
namespace {

constexpr int kDone = 0, kFault = 1, kBadInput = 2;

int fail(int code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fputs(("mpfa: " + message + "\n").c_str(), stderr);
  return code;
}

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? kDone : fail(kFault, "standard output cannot be written; is the disk full?");
}

int print(const Result<std::string>& report) {
  if (report.ok()) return print(report.value());
  const StatusCode code = report.status().code();
  const bool fault = code == StatusCode::internal || code == StatusCode::out_of_memory;
  return fail(fault ? kFault : kBadInput, report.status().message());
}

void add_attend(CLI::App& app, AttendOptions& options, std::vector<std::int64_t>& window) {
  app.add_option("file", options.file,
                 "safetensors file with q [batch, sq, q_heads, d], k and v [batch, sk, kv_heads, d] in F32, BF16 or "
                 "F16 (rank 3: batch 1); optional F32: k_mean, q_mean, v_mean [heads, d], read by recipes with "
                 "static means, and sinks [q_heads]")
      ->required();
  app.add_option("--recipe", options.recipe, "name, or name,field=value,... (see: mpfa recipes)")->required();
  app.add_flag("--causal", options.causal, "a query sees the keys up to its own position");
  app.add_option("--window", window, "LEFT,RIGHT keys seen on either side; -1 for all")->delimiter(',')->expected(2);
  app.add_option("--scale", options.scale, "softmax scale (default: 1 / sqrt(head_dim))");
  app.add_option("--softcap", options.softcap, "cap of the logits (default: none)");
  app.add_option("--page-size", options.page_size, "tokens per page (default: 64)")->check(CLI::Range(1, 4096));
  app.add_option("--threads", options.threads, "threads (default: all)")->check(CLI::Range(1, 1024));
  app.add_option("--out", options.out, "safetensors file to write out and lse to");
}

int run(int argc, char** argv) {
  CLI::App app("Attention with 4- and 8-bit operands.", "mpfa");
  app.set_version_flag("--version", "mpfa " MPFA_VERSION);
  app.require_subcommand(1);
  bool json = false;
  AttendOptions options;
  std::vector<std::int64_t> window;
  CLI::App* const doctor = app.add_subcommand("doctor", "what this machine has, and which kernels would run on it");
  CLI::App* const formats = app.add_subcommand("formats", "the storage formats");
  CLI::App* const recipes = app.add_subcommand("recipes", "the named recipes and where they come from");
  CLI::App* const matrix = app.add_subcommand("matrix", "what every device takes; docs/support.md is this output");
  CLI::App* const attend = app.add_subcommand("attend", "run one call and measure it against exact float64 attention");
  add_attend(*attend, options, window);
  for (CLI::App* const command : {doctor, formats, recipes, matrix, attend}) {
    command->add_flag("--json", json, "print JSON");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return fail(kBadInput, fmt::format("{} (see: mpfa --help)", error.what()));
  }
  if (*doctor) return print(doctor_report(json));
  if (*formats) return print(formats_report(json));
  if (*recipes) return print(recipes_report(json));
  if (*matrix) return print(matrix_report(json));
  if (window.size() == 2) {
    options.window_left = window[0];
    options.window_right = window[1];
  }
  options.json = json;
  return print(attend_report(options));
}

}  // namespace
}  // namespace mpfa::cli

int main(int argc, char** argv) {
  try {
    return mpfa::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return mpfa::cli::fail(mpfa::cli::kFault, "not enough memory");
  } catch (const std::exception& error) {
    return mpfa::cli::fail(mpfa::cli::kFault, fmt::format("internal fault: {}", error.what()));
  }
}
