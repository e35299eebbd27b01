// Dropout of tensors of a framework with DLPack's C interface (DLPackExchangeAPI, DLPack 1.2: PyTorch from 2.10 on),
// without building against it: little time passes between the Python call and the kernel.
#include "common.h"
#include "maskless/dropout.h"

namespace maskless::python {
namespace {

/// struct DLPackExchangeAPI of dlpack.h, major version 1.
struct ExchangeApi {
  std::uint32_t major, minor;
  void* previous;
  void *allocate, *from_managed, *to_managed;
  int (*view_of)(PyObject* object, nb::dlpack::dltensor* out);  // borrows shape and strides of the object
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

constexpr std::int64_t kOneThread = 4096;  // elements up to which the CPU is not worth more

bool same_dense_shape(const nb::dlpack::dltensor& x, const nb::dlpack::dltensor& y) {
  if (x.ndim != y.ndim || x.ndim < 1 || x.ndim > kMaxRank) return false;
  std::int64_t stride = 1;
  for (std::int32_t d = x.ndim; d-- > 0;) {
    if (x.shape[d] != y.shape[d] || x.strides[d] != stride || y.strides[d] != stride) return false;
    stride *= x.shape[d];
  }
  return stride > 0;
}

/// y = dropout(x) where x and y are contiguous, of one dtype and shape, on one CUDA device (or small, on the CPU), on
/// the framework's current stream. False if they are not: then nothing is done, and no error is raised.
bool exchange_dropout(nb::handle capsule, nb::handle x, nb::handle y, double p, std::uint64_t seed,
                      std::uint32_t stream) {
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  nb::dlpack::dltensor in, out;
  if (api == nullptr || api->major != 1 || api->view_of == nullptr || api->view_of(x.ptr(), &in) != 0 ||
      api->view_of(y.ptr(), &out) != 0) {
    PyErr_Clear();
    return false;
  }
  if (!same_dense_shape(in, out) || in.data == nullptr || out.data == nullptr) return false;
  if (in.dtype != out.dtype || in.device.device_type != out.device.device_type ||
      in.device.device_id != out.device.device_id)
    return false;
  ConstTensorView from;
  TensorView to;
  Execution execution;
  from.rank = to.rank = 1;  // contiguous: its shape does not matter
  from.shape[0] = in.shape[0] * in.strides[0];
  from.strides[0] = to.strides[0] = 1;
  to.shape[0] = from.shape[0];
  if (in.device.device_type == nb::device::cuda::value) {
    from.device = to.device = {DeviceType::kCuda, in.device.device_id};
    if (api->current_stream(in.device.device_type, in.device.device_id, &execution.cuda_stream) != 0) {
      PyErr_Clear();
      return false;
    }
  } else if (in.device.device_type == nb::device::cpu::value && from.shape[0] <= kOneThread) {
    execution.threads = 1;
  } else {
    return false;
  }
  const bool bfloat = in.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  if (!bfloat && in.dtype.code != static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) return false;
  try {
    from.dtype = to.dtype = bfloat ? DType::kBFloat16 : to_dtype("dropout", "x", in.dtype);
    from.data = static_cast<const char*>(in.data) + in.byte_offset;
    to.data = static_cast<char*>(out.data) + out.byte_offset;
    DropoutOptions options;
    options.p = p;
    options.seed = Seed(seed);
    options.stream = stream;
    dropout(from, to, options, execution);
  } catch (const Error&) {  // the general way says what is wrong
    return false;
  }
  return true;
}

}  // namespace

void bind_exchange(nb::module_& m) {
  m.def("exchange_dropout", &exchange_dropout, "api"_a, "x"_a, "y"_a, "p"_a, "seed"_a, "stream"_a);
}

}  // namespace maskless::python
