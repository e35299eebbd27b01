#include "device.h"

#include <charconv>

#include "cli_error.h"
#include "maskless/runtime.h"

#if MASKLESS_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace maskless::cli {

Device choose_device(const std::string& text) {
  if (text == "cpu") return {};
  const bool is_auto = text == "auto";
  int index = 0;
  if (text.starts_with("cuda:")) {
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + 5, end, index);
    if (result.ec != std::errc() || result.ptr != end || index < 0) index = -1;
  }
  if ((!is_auto && text != "cuda" && !text.starts_with("cuda:")) || index < 0)
    throw CliError("--device must be auto, cpu, cuda or cuda:N, got " + text);
  const auto devices = cuda_devices();
  for (const CudaDevice& device : devices)
    if (device.index == index) return {DeviceType::kCuda, index};
  if (is_auto) return {};
  if (!built_with_cuda()) throw CliError("--device " + text + ": this program was built without CUDA");
  if (devices.empty()) throw CliError("--device " + text + ": no CUDA device was found");
  throw CliError("--device " + text + ": there are only " + std::to_string(devices.size()) + " CUDA devices");
}

std::string device_text(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

#if MASKLESS_HAS_CUDA
namespace {
void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw CliError(std::string("CUDA ") + what + " failed: " + cudaGetErrorString(status));
}
}  // namespace

DeviceBuffer::DeviceBuffer(Device device, std::size_t bytes) : device_(device) {
  check(cudaSetDevice(device_.index), "device");
  check(cudaMalloc(&data_, bytes > 0 ? bytes : 1), "allocation");
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }
void DeviceBuffer::upload(const void* from, std::size_t bytes) {
  check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void DeviceBuffer::download(void* to, std::size_t bytes) const {
  check(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}
void DeviceBuffer::copy_from(const DeviceBuffer& other, std::size_t bytes) {
  check(cudaMemcpyAsync(data_, other.data_, bytes, cudaMemcpyDeviceToDevice, nullptr), "copy on the device");
}

DeviceTimer::DeviceTimer(Device device) {
  check(cudaSetDevice(device.index), "device");
  for (void*& event : events_) {
    cudaEvent_t e = nullptr;
    check(cudaEventCreate(&e), "event");
    event = e;
  }
}
DeviceTimer::~DeviceTimer() {
  for (void* event : events_) cudaEventDestroy(static_cast<cudaEvent_t>(event));
}
void DeviceTimer::start() { check(cudaEventRecord(static_cast<cudaEvent_t>(events_[0]), nullptr), "event"); }
double DeviceTimer::stop() {
  check(cudaEventRecord(static_cast<cudaEvent_t>(events_[1]), nullptr), "event");
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(events_[1])), "event");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(events_[0]), static_cast<cudaEvent_t>(events_[1])),
        "event");
  return milliseconds / 1e3;
}
#else
namespace {
[[noreturn]] void no_cuda() { throw CliError("this program was built without CUDA"); }
}  // namespace
DeviceBuffer::DeviceBuffer(Device device, std::size_t) : device_(device) { no_cuda(); }
DeviceBuffer::~DeviceBuffer() = default;
void DeviceBuffer::upload(const void*, std::size_t) { no_cuda(); }
void DeviceBuffer::download(void*, std::size_t) const { no_cuda(); }
void DeviceBuffer::copy_from(const DeviceBuffer&, std::size_t) { no_cuda(); }
DeviceTimer::DeviceTimer(Device) { no_cuda(); }
DeviceTimer::~DeviceTimer() = default;
void DeviceTimer::start() { no_cuda(); }
double DeviceTimer::stop() { no_cuda(); }
#endif

}  // namespace maskless::cli
