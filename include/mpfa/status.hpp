// Status and Result: how every call reports a failure. No exception leaves the library.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace mpfa {

enum class StatusCode : int {
  ok = 0,
  invalid_argument = 1,  // a shape, dtype, stride, pointer or text the call does not accept
  unsupported = 2,       // valid, but no kernel or format of this build does it; the message says why
  out_of_range = 3,      // a length, page id or offset past what the object holds
  out_of_memory = 4,     // the page pool or the heap is full; nothing was changed
  io_error = 5,          // a file could not be read or its content is not what it claims
  internal = 6,          // a fault of the library
};

/// A code and a message that says what was given, what is allowed and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::ok; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] T& value() & { return *value_; }
  [[nodiscard]] const T& value() const& { return *value_; }
  [[nodiscard]] T&& value() && { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace mpfa

/// Returns from the enclosing function when `expr` is a Status that is not ok.
#define MPFA_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                 \
    if (::mpfa::Status mpfa_status_ = (expr); !mpfa_status_.ok()) return mpfa_status_; \
  } while (0)
