// The engine for other languages: plain C types, codes of StatusCode, messages copied out.
// Not the way data takes: tensors come through the framework's adapter, which uses World.
//
// Owns nothing that a caller sees. Every function may be called from any thread; no exception
// leaves. A `message` of `message_size` bytes gets the text of an error, cut off where it does not
// fit, or an empty string; it may be null.
#ifndef TFDIST_CORE_ENGINE_C_API_H_
#define TFDIST_CORE_ENGINE_C_API_H_

#include <stdint.h>

#include "core/value/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Starts the engine of this process; all ranks call it. `transport` is "mpi" or "self"; for
// "socket" there is tfdist_init_sockets. Does nothing when there is an engine already. The ranks
// are those of the launched job with the numbers ranks[0], ranks[1], ... where `count` is not 0,
// those of the MPI communicator with this Fortran handle where it is not null, else all. `settings`
// has each setting of the engine as "name=value\n" (ReadSettings in engine_config.h).
TFDIST_API int tfdist_init(const char* transport, const int* ranks, int count,
                           const int* mpi_communicator, const char* settings, char* message,
                           int message_size);

// What makes connections (Connector in connector.h). Each returns a code of StatusCode and fills
// `message` in an error; called from any thread. `descriptors` are the engine's from then on.
typedef int (*tfdist_listen_t)(int channel, int* port, char* message, int message_size);
typedef int (*tfdist_connect_t)(int channel, const int* ranks, const int* ports, int count,
                                int* descriptors, char* message, int message_size);

// This process as `rank` of `size` ranks over TCP connections that are there. Rank r is on
// hosts[r], and on the host of another rank where their host_ids are equal; descriptors[r] is the
// connection to it, -1 for this rank. `listen` and `connect` stay callable until the engine ends.
typedef struct {
  int rank;
  int size;
  const int* host_ids;
  const char* const* hosts;
  const int* descriptors;
  tfdist_listen_t listen;
  tfdist_connect_t connect;
} tfdist_sockets;

// As tfdist_init, with the transport "socket". Takes the descriptors over, whatever it returns.
TFDIST_API int tfdist_init_sockets(const tfdist_sockets* sockets, const char* settings,
                                   char* message, int message_size);

// Ends it. clean = 1: all ranks call it and it waits for them. clean = 0: this process is failing,
// so it waits for nobody and leaves MPI as it is. Without an engine it does nothing.
TFDIST_API int tfdist_shutdown(int clean, char* message, int message_size);

// For a caller that does not know the exit status of this process: when exit() is called, it is
// ended as by tfdist_shutdown, cleanly if the status is 0. Where others are still in a collective
// then, the status becomes 1.
TFDIST_API void tfdist_shutdown_at_exit(void);

// The process of `rank`, by its number among all, has ended as far as the caller knows: the calls
// of this process that wait for it fail soon. From any thread.
TFDIST_API void tfdist_note_ended(int rank);

TFDIST_API int tfdist_is_initialized(void);

// Each is -1 when there is no engine.
TFDIST_API int tfdist_rank(void);
TFDIST_API int tfdist_size(void);
TFDIST_API int tfdist_local_rank(void);
TFDIST_API int tfdist_local_size(void);
TFDIST_API int tfdist_cross_rank(void);
TFDIST_API int tfdist_cross_size(void);
TFDIST_API int tfdist_is_homogeneous(void);

// Seconds spent inside collectives so far; -1 when there is no engine.
TFDIST_API double tfdist_communication_seconds(void);

// What collectives have cost so far (Meter::Json), as JSON with a terminating zero; an empty string
// where there is no engine. Fails where `json_size` bytes are too few.
TFDIST_API int tfdist_read_metrics(char* json, int json_size, char* message, int message_size);

// Ok while collectives can run, else why they cannot; waits for the one that runs.
TFDIST_API int tfdist_check(char* message, int message_size);

// Before the ranks change: no collective runs any more, here or where one waits for this rank
// (World::Part). The place of this rank is told as before. Waits for nobody.
TFDIST_API int tfdist_part(char* message, int message_size);

// After tfdist_part: this process as one of these ranks, counted anew, with the settings that it
// has (World::Meet). All of them call it. After an error it may be called again, with others.
// Takes the descriptors over, whatever it returns.
TFDIST_API int tfdist_meet(const tfdist_sockets* sockets, char* message, int message_size);

// An error where a collective could not run here, since there is no engine or this process was
// forked from a rank. Waits for nothing.
TFDIST_API int tfdist_check_place(char* message, int message_size);

// All ranks call it, each with a file of its own: records what their calls do
// (Engine::StartTimeline).
TFDIST_API int tfdist_timeline_start(const char* path, int mark_cycles, char* message,
                                     int message_size);

// Writes what is there and ends the recording of this rank; does nothing where there is none.
TFDIST_API void tfdist_timeline_stop(void);

// How collectives run from now on (Tuning in tuning.h); all ranks call it alike. `hierarchy` is
// "off", "nccl" or "mpi".
TFDIST_API int tfdist_tune(int64_t fusion_threshold_bytes, int64_t chunk_bytes,
                           const char* hierarchy, char* message, int message_size);

// The most that tfdist_tune takes as chunk_bytes, 0 where the ranks share no memory; -1 when there
// is no engine.
TFDIST_API int64_t tfdist_most_chunk_bytes(void);

// Each compression with its type on the wire (core/value/compression.h); the text lives on.
TFDIST_API const char* tfdist_compressions(void);

// The name that eager calls of this thread carry from now on (calling_thread.h).
TFDIST_API void tfdist_set_calling_thread(const char* name);

TFDIST_API int tfdist_barrier(const char* name, char* message, int message_size);

// Gathers `count` numbers of each rank, in the order of the ranks. `all` has room for count * size.
TFDIST_API int tfdist_gather(const char* name, const int* mine, int count, int* all, char* message,
                             int message_size);

// All ranks call each alike. A process set gets a number above 0.
TFDIST_API int tfdist_add_process_set(const int* ranks, int count, int* process_set, char* message,
                                      int message_size);
TFDIST_API int tfdist_remove_process_set(int process_set, char* message, int message_size);

// The plan by which a fused collective sends tensors (bucket_plan.h): buckets[i] becomes the number
// of the bucket that tensor i travels in. Needs no engine. `dtypes` are names such as "float32";
// all three arrays have `count` elements.
TFDIST_API int tfdist_plan_buckets(const char* const* dtypes, const int64_t* bytes, int count,
                                   int64_t threshold_bytes, int* buckets, char* message,
                                   int message_size);

// A number for these bytes (digest.h). Needs no engine.
TFDIST_API uint64_t tfdist_digest(const void* bytes, int64_t count);

// What the GPUs of this machine can be used with (device_report.h), as JSON with a terminating
// zero. `settings` as for tfdist_init. Needs no engine. Fails where `json_size` bytes are too few.
TFDIST_API int tfdist_describe_gpus(const char* settings, char* json, int json_size, char* message,
                                    int message_size);

#ifdef __cplusplus
}
#endif

#endif  // TFDIST_CORE_ENGINE_C_API_H_
