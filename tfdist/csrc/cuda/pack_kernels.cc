#include "cuda/pack_kernels.h"

namespace tfdist {
namespace {

// A buffer holds the tensors one after the other, so that vectors begin where memory likes it; what
// lies between is zeros. A block takes a chunk of the buffer, finds the tensors in it by bisection,
// and its threads take vectors of four. Factors are applied in float32 (float64 for float64), and
// rounding is to nearest even: the bits are those of core/value/cast.h on the processor.
constexpr char kSource[] = R"cuda(
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef long long int64;

struct Tensors {
  int64 starts[MOST_TENSORS];  // in the buffer, ascending
  int64 counts[MOST_TENSORS];
  void* memory[MOST_TENSORS];
};

struct Half { uint16 bits; };
struct Brain { uint16 bits; };

// Moved as they are, whatever they mean.
template <typename Bits>
struct Word { Bits bits; };

__device__ __forceinline__ uint32 BitsOf(float value) { return __float_as_uint(value); }

// A NaN keeps its sign and the head of its payload and becomes quiet, as on the processor.
__device__ __forceinline__ void Store(float value, Half* target) {
  uint16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  const uint32 all = BitsOf(value);
  const uint32 magnitude = all & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<uint16>((all >> 16 & 0x8000u) | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  }
  target->bits = bits;
}
__device__ __forceinline__ void Store(float value, Brain* target) {
  const uint32 bits = BitsOf(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  target->bits = static_cast<uint16>(is_nan ? (bits >> 16 | 0x40u) : rounded);
}
__device__ __forceinline__ void Store(float value, float* target) { *target = value; }
__device__ __forceinline__ void Store(double value, double* target) { *target = value; }

template <typename Bits>
__device__ __forceinline__ void Store(Word<Bits> value, Word<Bits>* target) { *target = value; }

// What NCCL does not reduce travels as whole numbers, of which the low bits come back. A bool is 0
// or 1, also where its byte is not.
struct Bool { unsigned char bits; };
struct Short { short bits; };
struct UnsignedShort { uint16 bits; };
__device__ __forceinline__ int Load(int source) { return source; }
__device__ __forceinline__ int Load(Bool source) { return source.bits != 0; }
__device__ __forceinline__ int Load(Short source) { return source.bits; }
__device__ __forceinline__ int Load(UnsignedShort source) { return source.bits; }
__device__ __forceinline__ void Store(int value, int* target) { *target = value; }
__device__ __forceinline__ void Store(int value, Bool* target) { target->bits = value != 0; }
__device__ __forceinline__ void Store(int value, Short* target) {
  target->bits = static_cast<short>(value);
}
__device__ __forceinline__ void Store(int value, UnsignedShort* target) {
  target->bits = static_cast<uint16>(value);
}

// The factor of what is not scaled.
struct One {};
template <typename T>
__device__ __forceinline__ T operator*(T value, One) { return value; }

template <typename Bits>
__device__ __forceinline__ Word<Bits> Load(Word<Bits> source) { return source; }
__device__ __forceinline__ float Load(Half source) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(source.bits));
  return value;
}
__device__ __forceinline__ float Load(Brain source) {
  return __uint_as_float(static_cast<uint32>(source.bits) << 16);
}
__device__ __forceinline__ float Load(float source) { return source; }
__device__ __forceinline__ double Load(double source) { return source; }

template <typename T>
struct alignas(sizeof(T) * 4) Four {
  T values[4];
};

// The last tensor that begins at or before `element`.
__device__ __forceinline__ int TensorAt(const Tensors& tensors, int count, int64 element) {
  int low = 0;
  int high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (tensors.starts[middle] <= element) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename From, typename To, typename Factor>
__device__ __forceinline__ void Copy(const From* source, To* target, int64 begin, int64 end,
                                     Factor factor) {
  const bool aligned = (reinterpret_cast<unsigned long long>(source) % sizeof(Four<From>) == 0) &&
                       (reinterpret_cast<unsigned long long>(target) % sizeof(Four<To>) == 0);
  int64 i = begin;
  if (aligned) {
    const int64 whole = begin + (end - begin) / 4 * 4;
    for (i = begin + 4 * threadIdx.x; i < whole; i += 4 * blockDim.x) {
      const Four<From> in = *reinterpret_cast<const Four<From>*>(source + i);
      Four<To> out;
#pragma unroll
      for (int k = 0; k < 4; ++k) Store(Load(in.values[k]) * factor, &out.values[k]);
      *reinterpret_cast<Four<To>*>(target + i) = out;
    }
    i = whole;
  }
  for (i += threadIdx.x; i < end; i += blockDim.x) Store(Load(source[i]) * factor, target + i);
}

// Chunks begin at multiples of CHUNK, hence of 4, in the buffer and in no tensor: `begin` of a part
// is a multiple of 4 within its tensor because tensors begin at multiples of 8.
template <typename Tensor, typename Wire, typename Factor, bool pack>
__device__ __forceinline__ void Move(const Tensors& tensors, int count, Wire* buffer, int64 size,
                                     Factor factor) {
  for (int64 chunk = blockIdx.x; chunk * CHUNK < size; chunk += gridDim.x) {
    const int64 first = chunk * CHUNK;
    const int64 last = first + CHUNK < size ? first + CHUNK : size;
    for (int t = TensorAt(tensors, count, first); t < count && tensors.starts[t] < last; ++t) {
      const int64 start = tensors.starts[t];
      const int64 begin = first > start ? first - start : 0;
      const int64 end = last - start < tensors.counts[t] ? last - start : tensors.counts[t];
      Tensor* const memory = static_cast<Tensor*>(tensors.memory[t]);
      if (pack) {
        Copy(memory, buffer + start, begin, end, factor);
        // Zeros up to the next tensor, or to the end of the buffer.
        const int64 next = t + 1 < count ? tensors.starts[t + 1] : size;
        const int64 stop = next < last ? next : last;
        const int64 gap = start + (end > begin ? end : begin);
        for (int64 i = gap + threadIdx.x; i < stop; i += blockDim.x) buffer[i] = Wire();
      } else {
        Copy(buffer + start, memory, begin, end, factor);
      }
    }
  }
}

#define KERNELS(name, Tensor, Wire, Factor)                                                       \
  extern "C" __global__ void pack_##name(const __grid_constant__ Tensors tensors, int count,      \
                                         Wire* buffer, int64 size, Factor factor) {               \
    Move<Tensor, Wire, Factor, true>(tensors, count, buffer, size, factor);                       \
  }                                                                                               \
  extern "C" __global__ void unpack_##name(const __grid_constant__ Tensors tensors, int count,    \
                                           Wire* buffer, int64 size, Factor factor) {             \
    Move<Tensor, Wire, Factor, false>(tensors, count, buffer, size, factor);                      \
  }

KERNELS(1_bytes, Word<unsigned char>, Word<unsigned char>, One)
KERNELS(2_bytes, Word<uint16>, Word<uint16>, One)
KERNELS(4_bytes, Word<uint32>, Word<uint32>, One)
KERNELS(8_bytes, Word<int64>, Word<int64>, One)
KERNELS(bool_int32, Bool, int, One)
KERNELS(int16_int32, Short, int, One)
KERNELS(uint16_int32, UnsignedShort, int, One)
KERNELS(float32_float32, float, float, float)
KERNELS(float32_float16, float, Half, float)
KERNELS(float32_bfloat16, float, Brain, float)
KERNELS(float16_float16, Half, Half, float)
KERNELS(bfloat16_bfloat16, Brain, Brain, float)
KERNELS(float64_float64, double, double, double)
KERNELS(float64_float16, double, Half, double)
KERNELS(float64_bfloat16, double, Brain, double)
)cuda";

}  // namespace

std::string PackKernels() {
  return "#define MOST_TENSORS " + std::to_string(kMostTensors) + "\n#define CHUNK " +
         std::to_string(kPackChunk) + "\n" + kSource;
}

}  // namespace tfdist
