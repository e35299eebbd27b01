// What --json prints.
#ifndef MASKLESS_CLI_PRINT_JSON_H_
#define MASKLESS_CLI_PRINT_JSON_H_

#include <iostream>
#include <nlohmann/json.hpp>

namespace maskless::cli {

/// One line on standard output. Bytes that are not UTF-8 (in the name of a file) become U+FFFD.
inline void print_json(const nlohmann::ordered_json& json) {
  std::cout << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_PRINT_JSON_H_
