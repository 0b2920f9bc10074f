#include "data/data_api.h"

#include <memory>

#include "core/watch/steady_clock.h"
#include "data/serving.h"
#include "data/watch.h"

namespace {

tfdist_pass PassOf(const tfdist::PassReading& pass) {
  return {pass.number,       pass.elements, pass.ids,
          pass.distinct_ids, pass.id_bytes, pass.ended ? 1 : 0};
}

}  // namespace

void tfdist_read_watch(const char* name, tfdist_watch* reading) {
  const std::shared_ptr<tfdist::Watch> watch = tfdist::Watch::Find(name);
  const tfdist::WatchReading read =
      watch == nullptr ? tfdist::WatchReading() : watch->Read(tfdist::SteadyNs());
  *reading = {read.elements, read.waited_ns, read.longest_wait_ns, PassOf(read.newest),
              PassOf(read.newest_ended)};
}

void tfdist_set_service_note(const char* service, const char* note) {
  tfdist::SetServiceNote(service, note);
}

void tfdist_read_serving(tfdist_serving* reading) {
  const tfdist::Serving& serving = tfdist::Serving::Get();
  *reading = {serving.elements,          serving.bytes,
              serving.busy_ns,           serving.splits,
              serving.open_iterators,    serving.ended_iterators,
              serving.waiting_iterators, serving.draining ? 1 : 0};
}

void tfdist_set_draining(int draining) { tfdist::Serving::Get().draining = draining != 0; }
