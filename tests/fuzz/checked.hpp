// A status of the C ABI with its message: a failing call says something, a successful one says nothing.
#pragma once

#include "mpfa/mpfa.h"
#include "tests/fuzz/input.hpp"

namespace mpfa::fuzz {

class Checked {
 public:
  operator mpfa_error*() { return &error_; }  // NOLINT(google-explicit-constructor)
  bool ok(mpfa_status status) {
    require(status == error_.status && status >= MPFA_OK && status <= MPFA_IO_ERROR, "a status no call may give");
    require((error_.message[0] == '\0') == (status == MPFA_OK), "a refusal without a message, or the reverse");
    return status == MPFA_OK;
  }
  /// Ends the run as a finding, with what the call said.
  void must(mpfa_status status, const char* what) {
    if (!ok(status)) std::fprintf(stderr, "fuzz: %s\n", error_.message);
    require(status == MPFA_OK, what);
  }
  [[nodiscard]] mpfa_status status() const { return error_.status; }

 private:
  mpfa_error error_ = MPFA_ERROR_INIT;
};

}  // namespace mpfa::fuzz
