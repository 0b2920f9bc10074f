// The kernel of TfdistServedDataset: counts what a worker makes, ends its part where it drains, and
// refuses a dataset that dynamic sharding does not reach.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/watch/steady_clock.h"
#include "data/serving.h"
#include "tensorflow/core/framework/dataset.h"
#include "tf/data/draining_splits.h"
#include "tf/data/service_error.h"
#include "tf/data/unary_dataset.h"

namespace tfdist {
namespace {

using tensorflow::Tensor;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetIterator;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;

// Whether a dataset may have elements that it made in an earlier pass, and so without a split.
bool KeepsElements(const DatasetBase* dataset) {
  for (const char* kind : {"Cache", "Snapshot"}) {
    if (dataset->type_string().find(kind) != std::string::npos) return true;
  }
  std::vector<const DatasetBase*> inputs;
  // One that does not tell its inputs may keep elements.
  if (!dataset->InputDatasets(&inputs).ok()) return true;
  return std::any_of(inputs.begin(), inputs.end(), KeepsElements);
}

absl::Status NotSharded() {
  return absl::InvalidArgumentError(
      "dynamic sharding does not reach this dataset: it produced an element without requesting a "
      "split of the data, so every worker would deliver all elements. TensorFlow cannot shard, "
      "for example, an `interleave` without num_parallel_calls directly after a `shuffle` (which "
      "`list_files` adds by itself): set num_parallel_calls. Otherwise use sharding=\"data\", or "
      "sharding=\"off\" if elements may come once from every worker.");
}

class ServedDataset : public UnaryDataset {
 public:
  ServedDataset(tensorflow::OpKernelContext* context, const DatasetBase* input,
                int64_t largest_bytes)
      : UnaryDataset(context, input),
        largest_bytes_(largest_bytes),
        keeps_elements_(KeepsElements(input)) {}

  int64_t largest_bytes() const { return largest_bytes_; }
  bool keeps_elements() const { return keeps_elements_; }

  const tensorflow::DataTypeVector& output_dtypes() const override {
    return input()->output_dtypes();
  }
  const std::vector<tensorflow::PartialTensorShape>& output_shapes() const override {
    return input()->output_shapes();
  }
  std::string DebugString() const override { return "TfdistServedDatasetOp::Dataset"; }

 protected:
  std::unique_ptr<IteratorBase> MakeIteratorInternal(const std::string& prefix) const override {
    return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::TfdistServed"});
  }
  absl::Status AsGraphDefInternal(SerializationContext* context, DatasetGraphDefBuilder* builder,
                                  tensorflow::Node** output) const override {
    tensorflow::Node* node = nullptr;
    TF_RETURN_IF_ERROR(builder->AddInputDataset(context, input(), &node));
    tensorflow::AttrValue largest_bytes;
    builder->BuildAttrValue(largest_bytes_, &largest_bytes);
    return builder->AddDataset(this, {node}, {{"largest_bytes", largest_bytes}}, output);
  }

 private:
  class Iterator : public DatasetIterator<ServedDataset> {
   public:
    explicit Iterator(const Params& params) : DatasetIterator<ServedDataset>(params) {
      ++serving_.open_iterators;
    }
    ~Iterator() override {
      --serving_.open_iterators;
      SetWaiting(false);
    }

    bool SymbolicCheckpointCompatible() const override { return true; }

    absl::Status Initialize(IteratorContext* context) override {
      splits_ = DrainingSplits::Wrap(context->split_providers(), &serving_, state_);
      IteratorContext inner(InnerParams(context));
      const absl::Status status = dataset()->input()->MakeIterator(&inner, this, prefix(), &input_);
      context->MergeCheckpoint(inner.checkpoint());
      return status;
    }

   protected:
    absl::Status GetNextInternal(IteratorContext* context, std::vector<Tensor>* element,
                                 bool* end) override {
      SetWaiting(false);
      const int64_t start_ns = SteadyNs();
      absl::Status status;
      if (splits_.empty()) {
        status = input_->GetNext(context, element, end);
      } else {
        IteratorContext inner(InnerParams(context));
        status = input_->GetNext(&inner, element, end);
        context->MergeCheckpoint(inner.checkpoint());
      }
      serving_.busy_ns += SteadyNs() - start_ns;
      if (!status.ok() && !state_->refused) return status;
      if (!status.ok()) *end = true;
      if (!splits_.empty() && !state_->asked && !*end && !dataset()->keeps_elements())
        return NotSharded();
      return Count(*element, *end);
    }

    absl::Status SaveInternal(SerializationContext* context, IteratorStateWriter* writer) override {
      return SaveInput(context, writer, input_);
    }
    absl::Status RestoreInternal(IteratorContext* context, IteratorStateReader* reader) override {
      IteratorContext inner(InnerParams(context));
      const absl::Status status = RestoreInput(&inner, reader, input_);
      context->MergeCheckpoint(inner.checkpoint());
      return status;
    }

   private:
    IteratorContext::Params InnerParams(IteratorContext* context) const {
      IteratorContext::Params params(context);
      params.split_providers = splits_;
      return params;
    }

    absl::Status Count(const std::vector<Tensor>& element, bool end) {
      if (end) {
        if (!ended_.exchange(true)) ++serving_.ended_iterators;
        return absl::OkStatus();
      }
      const int64_t bytes = tensorflow::data::GetTotalBytes(element);
      // The worker's process would abort where it puts the element into a message.
      if (bytes > dataset()->largest_bytes()) return TooLarge(bytes, dataset()->largest_bytes());
      SetWaiting(true);
      ++serving_.elements;
      serving_.bytes += bytes;
      return absl::OkStatus();
    }

    void SetWaiting(bool waiting) {
      if (waiting_.exchange(waiting) == waiting) return;
      serving_.waiting_iterators += waiting ? 1 : -1;
    }

    Serving& serving_ = Serving::Get();
    const std::shared_ptr<DrainingSplits::State> state_ = std::make_shared<DrainingSplits::State>();
    DrainingSplits::Splits splits_;
    std::atomic<bool> ended_{false};
    std::atomic<bool> waiting_{false};
    std::unique_ptr<IteratorBase> input_;
  };

  const int64_t largest_bytes_;
  const bool keeps_elements_;
};

class ServedDatasetKernel : public tensorflow::data::UnaryDatasetOpKernel {
 public:
  explicit ServedDatasetKernel(tensorflow::OpKernelConstruction* context)
      : UnaryDatasetOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("largest_bytes", &largest_bytes_));
  }

 protected:
  void MakeDataset(tensorflow::OpKernelContext* context, DatasetBase* input,
                   DatasetBase** output) override {
    *output = new ServedDataset(context, input, largest_bytes_);
  }

 private:
  int64_t largest_bytes_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistServedDataset").Device(tensorflow::DEVICE_CPU),
                        ServedDatasetKernel);

}  // namespace
}  // namespace tfdist
