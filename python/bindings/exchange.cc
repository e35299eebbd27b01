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

const ExchangeApi* api_of(nb::handle capsule) {
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  return api == nullptr || api->major != 1 || api->view_of == nullptr ? nullptr : api;
}

bool view_of(const ExchangeApi& api, nb::handle tensor, nb::dlpack::dltensor& out) {
  if (api.view_of(tensor.ptr(), &out) == 0) return true;
  PyErr_Clear();
  return false;
}

template <typename T>
T* data_of(const nb::dlpack::dltensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

bool run_dropout(const ExchangeApi& api, nb::handle x, nb::handle y, double p, const Seed& seed, std::uint32_t stream,
                 int seed_device) {
  nb::dlpack::dltensor in, out;
  if (!view_of(api, x, in) || !view_of(api, y, out) || !same_dense_shape(in, out)) return false;
  const std::int64_t size = in.shape[0] * in.strides[0];
  if (in.dtype != out.dtype || in.device.device_type != out.device.device_type ||
      in.device.device_id != out.device.device_id)
    return false;
  const bool cuda = in.device.device_type == nb::device::cuda::value;
  if (seed_device >= 0 && (!cuda || in.device.device_id != seed_device)) return false;
  if (!cuda && (in.device.device_type != nb::device::cpu::value || size > kOneThread)) return false;
  const bool bfloat = in.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  if (!bfloat && in.dtype.code != static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) return false;
  if (in.dtype.bits == 8 || in.data == nullptr || out.data == nullptr) return false;
  ConstTensorView from;
  TensorView to;
  Execution execution;
  execution.threads = 1;
  if (cuda) {
    from.device = to.device = {DeviceType::kCuda, in.device.device_id};
    if (api.current_stream(in.device.device_type, in.device.device_id, &execution.cuda_stream) != 0) {
      PyErr_Clear();
      return false;
    }
  }
  from.rank = to.rank = 1;  // contiguous: the shape does not matter
  from.shape[0] = to.shape[0] = size;
  from.strides[0] = to.strides[0] = 1;
  from.data = data_of<const void>(in);
  to.data = data_of<void>(out);
  try {
    from.dtype = to.dtype = bfloat ? DType::kBFloat16 : to_dtype("dropout", "x", in.dtype);
    DropoutOptions options;
    options.p = p;
    options.seed = seed;
    options.stream = stream;
    dropout(from, to, options, execution);
  } catch (const Error&) {  // the general way says what is wrong
    return false;
  }
  return true;
}

/// y = dropout(x) where x and y are contiguous, of one dtype and shape, on one CUDA device (or small, on the CPU), on
/// the framework's current stream. False if they are not: then nothing is done, and no error is raised.
bool exchange_dropout(nb::handle capsule, nb::handle x, nb::handle y, double p, std::uint64_t seed,
                      std::uint32_t stream) {
  const ExchangeApi* api = api_of(capsule);
  return api != nullptr && run_dropout(*api, x, y, p, Seed(seed), stream, -1);
}

/// The same with the seed in a tensor of one 64-bit integer: on x's device read when the work runs, on the CPU at once.
bool exchange_dropout_seed(nb::handle capsule, nb::handle x, nb::handle y, double p, nb::handle seed,
                           std::uint32_t stream) {
  const ExchangeApi* api = api_of(capsule);
  nb::dlpack::dltensor view;
  if (api == nullptr || !view_of(*api, seed, view)) return false;
  for (std::int32_t d = 0; d < view.ndim; ++d)
    if (view.shape[d] != 1) return false;
  if (view.data == nullptr || (view.dtype != nb::dtype<std::int64_t>() && view.dtype != nb::dtype<std::uint64_t>()))
    return false;
  const auto* word = data_of<const std::uint64_t>(view);
  if (view.device.device_type == nb::device::cpu::value) return run_dropout(*api, x, y, p, Seed(*word), stream, -1);
  if (view.device.device_type != nb::device::cuda::value) return false;
  return run_dropout(*api, x, y, p, Seed::at(word), stream, view.device.device_id);
}

}  // namespace

void bind_exchange(nb::module_& m) {
  m.def("exchange_dropout", &exchange_dropout, "api"_a, "x"_a, "y"_a, "p"_a, "seed"_a, "stream"_a);
  m.def("exchange_dropout_seed", &exchange_dropout_seed, "api"_a, "x"_a, "y"_a, "p"_a, "seed"_a, "stream"_a);
}

}  // namespace maskless::python
