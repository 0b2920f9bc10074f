#include "tf/data/draining_splits.h"

#include <utility>

namespace tfdist {

using tensorflow::data::SplitProvider;

namespace {

template <typename Splits>
auto AskIsDynamic(const Splits& splits, int /*preferred*/) -> decltype(splits.IsDynamic()) {
  return splits.IsDynamic();
}

template <typename Splits>
bool AskIsDynamic(const Splits& /*splits*/, long /*where the other is not*/) {
  return false;
}

}  // namespace

DrainingSplits::Splits DrainingSplits::Wrap(const Splits& splits, Serving* serving,
                                            const std::shared_ptr<State>& state) {
  Splits wrapped;
  for (const auto& input : splits) {
    wrapped.push_back(std::make_shared<DrainingSplits>(input, serving, state));
  }
  return wrapped;
}

DrainingSplits::DrainingSplits(std::shared_ptr<SplitProvider> input, Serving* serving,
                               std::shared_ptr<State> state)
    : input_(std::move(input)), serving_(serving), state_(std::move(state)) {}

absl::Status DrainingSplits::GetNext(tensorflow::Tensor* split, bool* end_of_splits) {
  state_->asked = true;
  if (serving_->draining) {
    *end_of_splits = true;
    return absl::OkStatus();
  }
  absl::Status status = input_->GetNext(split, end_of_splits);
  if (status.ok() && !*end_of_splits) ++serving_->splits;
  return status;
}

absl::Status DrainingSplits::Reset() {
  // `repeat` without a count asks again for as long as there are split providers, even where no
  // round has an element. With a count it ends by itself.
  constexpr int64_t kMostIdleResets = 1000;
  if (!serving_->draining) {
    state_->idle_resets = 0;
  } else if (++state_->idle_resets >= kMostIdleResets) {
    state_->refused = true;
    return absl::OutOfRangeError("the worker is draining and takes no further splits");
  }
  return input_->Reset();
}

absl::Status DrainingSplits::Save(std::function<std::string(std::string)> full_name,
                                  tensorflow::data::IteratorStateWriter* writer) {
  return input_->Save(std::move(full_name), writer);
}

absl::Status DrainingSplits::Restore(std::function<std::string(std::string)> full_name,
                                     tensorflow::data::IteratorStateReader* reader) {
  return input_->Restore(std::move(full_name), reader);
}

int64_t DrainingSplits::Cardinality() const { return input_->Cardinality(); }

void DrainingSplits::Cancel() { input_->Cancel(); }

bool DrainingSplits::IsDynamic() const { return AskIsDynamic(*input_, 0); }

}  // namespace tfdist
