// The one exception that the library throws for bad input, unsupported requests and device failures.
#ifndef MASKLESS_ERROR_H_
#define MASKLESS_ERROR_H_

#include <exception>
#include <string>
#include <utility>

namespace maskless {

/// What sort of rule was broken. Python maps kValue to ValueError, kType to TypeError, kRuntime to RuntimeError.
enum class ErrorKind { kValue, kType, kRuntime };

/// `what()` reads "dropout: p must be in [0, 1], got 1.5": operation, argument, rule, value.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string operation, std::string argument, std::string rule, std::string value)
      : kind_(kind),
        operation_(std::move(operation)),
        argument_(std::move(argument)),
        rule_(std::move(rule)),
        value_(std::move(value)),
        message_(operation_ + ": " + argument_ + " " + rule_ + (value_.empty() ? "" : ", got " + value_)) {}

  const char* what() const noexcept override { return message_.c_str(); }
  ErrorKind kind() const noexcept { return kind_; }
  const std::string& operation() const noexcept { return operation_; }
  const std::string& argument() const noexcept { return argument_; }
  const std::string& rule() const noexcept { return rule_; }
  const std::string& value() const noexcept { return value_; }

 private:
  ErrorKind kind_;
  std::string operation_, argument_, rule_, value_, message_;
};

}  // namespace maskless

#endif  // MASKLESS_ERROR_H_
