// Collectives for other languages: plain C types, codes of StatusCode, messages copied out (as in
// c_api.h). Tensors are in the host's memory; those of an allreduce and a broadcast may be on a
// GPU.
//
// A collective is started and waited for, by its number. Each rank may start them in an order of
// its own: the ranks agree on one by the names (UnorderedCalls), and a thread of the engine runs
// them. What is wrong with the arguments of one rank alone, or differs between them, is an error on
// all ranks, told by tfdist_wait; the start fails only if this rank cannot say what it wants.
//
// The memory of tensors is the caller's and stays valid until the collective has ended; names and
// shapes are copied. Every function may be called from any thread.
#ifndef TFDIST_CORE_ENGINE_COLLECTIVE_API_H_
#define TFDIST_CORE_ENGINE_COLLECTIVE_API_H_

#include <stdint.h>

#include "core/value/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* name;      // what errors call it
  const char* dtype;     // "float32", ...
  const int64_t* shape;  // row-major; `dims` numbers
  int dims;
  void* input;   // null only where there are no elements
  void* output;  // of the same shape, may be `input`; not looked at where tfdist_result has it
} tfdist_tensor;

// The GPU that has the tensors of a collective. What its stream holds at the start makes the
// inputs, and is done with the memory of the outputs.
typedef struct {
  int number;  // by the driver; the same in all collectives of a process
  void* stream;
} tfdist_gpu;

// What a collective is called by, the ranks that take part (0: all), and this rank's tensors.
typedef struct {
  const char* name;  // not that of a collective of these ranks that is under way
  int process_set;
  const tfdist_tensor* tensors;
  int count;
  const tfdist_gpu* gpu;  // null: the tensors are in the host's memory
} tfdist_tensors;

typedef struct {
  const char* reduction;    // "sum", "average", "min", "max", "product", "adasum"
  const char* compression;  // "none", "fp16", ...
  double prescale;
  double postscale;
} tfdist_reduction;

// Each gives the number of the collective, which is the caller's to forget.
TFDIST_API int tfdist_start_allreduce(const tfdist_tensors* tensors,
                                      const tfdist_reduction* reduction, int64_t* number,
                                      char* message, int message_size);

// Result i: this rank's rows of tensor i; the lower ranks have one more where they do not divide
// evenly.
TFDIST_API int tfdist_start_reducescatter(const tfdist_tensors* tensors,
                                          const tfdist_reduction* reduction, int64_t* number,
                                          char* message, int message_size);

// `root` is a rank among all.
TFDIST_API int tfdist_start_broadcast(const tfdist_tensors* tensors, int root, int64_t* number,
                                      char* message, int message_size);

// Result i: the rows of tensor i of all ranks; a scalar is one row. The last result, after those of
// the tensors: how many each rank gave of each, int64, by tensor and then by rank.
TFDIST_API int tfdist_start_allgather(const tfdist_tensors* tensors, int64_t* number, char* message,
                                      int message_size);

// Of one tensor, whose rows go to the ranks: splits[r] to rank r, or equally many where
// `split_count` is 0. Result 0: what came; result 1: how many rows came from each rank, int64.
TFDIST_API int tfdist_start_alltoall(const tfdist_tensors* tensors, const int64_t* splits,
                                     int split_count, int64_t* number, char* message,
                                     int message_size);

// Without tensors.
TFDIST_API int tfdist_start_barrier(const tfdist_tensors* tensors, int64_t* number, char* message,
                                    int message_size);

// Waits until it has ended, but not longer than so many seconds: 0 only looks. Sets `ended`; the
// error is that of the collective.
TFDIST_API int tfdist_wait(int64_t number, double seconds, int* ended, char* message,
                           int message_size);

// A result of a collective that has ended well, once: contiguous memory, which is the caller's from
// then on, to be given to tfdist_free_result; null where it has no element. `rows` is dimension 0;
// the others are those of the tensor.
TFDIST_API int tfdist_result(int64_t number, int index, void** data, int64_t* rows, char* message,
                             int message_size);
TFDIST_API void tfdist_free_result(void* data);

// The number means nothing from now on.
TFDIST_API void tfdist_forget(int64_t number);

// This rank has nothing left to contribute (Engine::Join), once all that it has started on all
// ranks has ended. `last` is the rank that joined last.
TFDIST_API int tfdist_join(int* last, char* message, int message_size);

#ifdef __cplusplus
}
#endif

#endif  // TFDIST_CORE_ENGINE_COLLECTIVE_API_H_
