// maskless info
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "maskless/core/version.h"
#include "maskless/runtime.h"

namespace maskless::cli {
namespace {

std::string processor() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

nlohmann::ordered_json describe() {
  nlohmann::ordered_json json = {{"version", kVersion}, {"specification", kSpecVersion}};
  json["cpu"] = {{"name", processor()}, {"threads", default_threads()}};
  for (Isa isa : instruction_sets()) json["cpu"]["instruction_sets"].push_back(isa_name(isa));
  json["cuda"] = {{"built", built_with_cuda()}, {"devices", nlohmann::ordered_json::array()}};
  for (const CudaDevice& device : cuda_devices())
    json["cuda"]["devices"].push_back({{"index", device.index},
                                       {"name", device.name},
                                       {"compute_capability", device.compute_capability},
                                       {"memory_bytes", device.memory_bytes}});
  return json;
}

void print(const nlohmann::ordered_json& json) {
  std::cout << "maskless " << kVersion << ", mask specification " << kSpecVersion << "\n";
  std::cout << "CPU     " << json["cpu"]["name"].get<std::string>() << ", " << json["cpu"]["threads"] << " threads\n";
  std::cout << "        instruction sets:";
  for (const auto& isa : json["cpu"]["instruction_sets"]) std::cout << " " << isa.get<std::string>();
  std::cout << " (the last is used)\n";
  if (!json["cuda"]["built"]) {
    std::cout << "CUDA    not built in\n";
  } else if (json["cuda"]["devices"].empty()) {
    std::cout << "CUDA    built in, no device found\n";
  }
  for (const auto& device : json["cuda"]["devices"]) {
    char line[64];
    std::snprintf(line, sizeof line, ", compute capability %.1f, %.1f GiB\n",
                  device["compute_capability"].get<int>() / 10.0, device["memory_bytes"].get<double>() / (1 << 30));
    std::cout << "CUDA    cuda:" << device["index"] << " " << device["name"].get<std::string>() << line;
  }
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("info", "Version, specification, instruction sets, threads, devices");
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "Print as JSON");
  sub->callback([json] {
    if (*json) {
      std::cout << describe().dump(2) << "\n";
    } else {
      print(describe());
    }
  });
}

}  // namespace maskless::cli
