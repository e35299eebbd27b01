// Where an operation runs, and memory there.
#ifndef MASKLESS_CLI_DEVICE_H_
#define MASKLESS_CLI_DEVICE_H_

#include <cstddef>
#include <string>

#include "maskless/tensor.h"

namespace maskless::cli {

/// auto (a CUDA device if there is one, else the CPU), cpu, cuda, cuda:N. Throws CliError for what is not there.
Device choose_device(const std::string& text);

/// "cpu", "cuda:0".
std::string device_text(Device device);

/// Memory on a CUDA device, freed at the end. Copies block until done, in order with kernels on the default stream.
class DeviceBuffer {
 public:
  DeviceBuffer(Device device, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }
  void upload(const void* from, std::size_t bytes);
  void download(void* to, std::size_t bytes) const;
  void copy_from(const DeviceBuffer& other, std::size_t bytes);  ///< on the device; returns once it is queued

 private:
  Device device_;
  void* data_ = nullptr;
};

/// The device's clock around what is queued on the default stream.
class DeviceTimer {
 public:
  explicit DeviceTimer(Device device);
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  void start();
  double stop();  ///< waits; seconds since start() by the device's clock

 private:
  void* events_[2] = {};
};

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_DEVICE_H_
