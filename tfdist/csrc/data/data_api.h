// The data service's counters, notes and drain flag for other languages, in the manner of c_api.h.
// Not the way data takes.
#ifndef TFDIST_DATA_DATA_API_H_
#define TFDIST_DATA_DATA_API_H_

#include <stdint.h>

#include "core/engine/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// The fields of PassReading (watch.h).
struct tfdist_pass {
  int64_t number;
  int64_t elements;
  int64_t ids;
  int64_t distinct_ids;
  int64_t id_bytes;
  int64_t ended;
};

// The fields of WatchReading (watch.h).
struct tfdist_watch {
  int64_t elements;
  int64_t waited_ns;
  int64_t longest_wait_ns;
  struct tfdist_pass newest;
  struct tfdist_pass newest_ended;
};

// The fields of Serving (serving.h).
struct tfdist_serving {
  int64_t elements;
  int64_t bytes;
  int64_t busy_ns;
  int64_t splits;
  int64_t open_iterators;
  int64_t ended_iterators;
  int64_t waiting_iterators;
  int64_t draining;
};

// All zero where nothing was read under this name.
TFDIST_API void tfdist_read_watch(const char* name, struct tfdist_watch* reading);

// SetServiceNote (watch.h).
TFDIST_API void tfdist_set_service_note(const char* service, const char* note);

TFDIST_API void tfdist_read_serving(struct tfdist_serving* reading);

// 0 lets this process take new work again.
TFDIST_API void tfdist_set_draining(int draining);

#ifdef __cplusplus
}
#endif

#endif  // TFDIST_DATA_DATA_API_H_
