// The reader of rows (row_reader.h) for other languages. As in c_api.h, no exception leaves, codes
// are those of StatusCode, and a `message` may be null.
#ifndef TFDIST_DATA_ROW_READER_API_H_
#define TFDIST_DATA_ROW_READER_API_H_

#include <stdint.h>

#include "core/engine/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// Called on threads of the library. `read` is valid until it returns.
typedef void (*tfdist_row_reader)(void* read, const char* request, int64_t request_bytes);

TFDIST_API void tfdist_open_row_reader(tfdist_row_reader reader, int threads);

// 1 when no thread is inside the reader any more, 0 when `seconds` have passed before.
TFDIST_API int tfdist_close_row_reader(double seconds);

// 0 once nobody waits for the rows.
TFDIST_API int tfdist_read_is_wanted(void* read);

struct tfdist_column {
  const int64_t* shape;
  int dimensions;
  const void* values;
  int64_t bytes;
  // Null, or for strings one number more than there are strings: where in `values` each begins, and
  // where the last one ends.
  const int64_t* ends;
};

// Copies the values of output number `index`.
TFDIST_API int tfdist_give_column(void* read, int index, const struct tfdist_column* column,
                                  char* message, int message_size);

// What the read fails with, in place of columns. `code` is one of StatusCode.
TFDIST_API void tfdist_fail_read(void* read, int code, const char* why);

#ifdef __cplusplus
}
#endif

#endif  // TFDIST_DATA_ROW_READER_API_H_
