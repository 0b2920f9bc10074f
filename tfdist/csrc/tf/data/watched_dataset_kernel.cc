// The kernel of TfdistWatchedDataset: counts what a trainer reads and ends a wait that is too long.
#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/watch/steady_clock.h"
#include "data/watch.h"
#include "data/watchdog.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/graph/graph.h"
#include "tf/data/listener.h"
#include "tf/data/service_error.h"
#include "tf/data/unary_dataset.h"

namespace tfdist {
namespace {

using tensorflow::CancellationManager;
using tensorflow::Tensor;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetIterator;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;

// The attributes of the op.
struct Settings {
  std::string service;
  std::string watch;
  int64_t wait_ms = 0;
  bool with_ids = false;
};

// How long an iterator waits at its end for a sign of life of its dispatcher.
constexpr int64_t kFarewellMs = 5000;

class WatchedDataset : public UnaryDataset {
 public:
  WatchedDataset(tensorflow::OpKernelContext* context, const DatasetBase* input, Settings settings)
      : UnaryDataset(context, input),
        settings_(std::move(settings)),
        dtypes_(input->output_dtypes()),
        shapes_(input->output_shapes()) {
    if (settings_.with_ids) {
      dtypes_.erase(dtypes_.begin());
      shapes_.erase(shapes_.begin());
    }
  }

  const Settings& settings() const { return settings_; }

  const tensorflow::DataTypeVector& output_dtypes() const override { return dtypes_; }
  const std::vector<tensorflow::PartialTensorShape>& output_shapes() const override {
    return shapes_;
  }
  std::string DebugString() const override { return "TfdistWatchedDatasetOp::Dataset"; }

 protected:
  std::unique_ptr<IteratorBase> MakeIteratorInternal(const std::string& prefix) const override {
    return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::TfdistWatched"});
  }
  absl::Status AsGraphDefInternal(SerializationContext* context, DatasetGraphDefBuilder* builder,
                                  tensorflow::Node** output) const override {
    tensorflow::Node* node = nullptr;
    TF_RETURN_IF_ERROR(AddInput(context, builder, &node));
    tensorflow::AttrValue service, watch, wait_ms, with_ids;
    builder->BuildAttrValue(settings_.service, &service);
    builder->BuildAttrValue(settings_.watch, &watch);
    builder->BuildAttrValue(settings_.wait_ms, &wait_ms);
    builder->BuildAttrValue(settings_.with_ids, &with_ids);
    return builder->AddDataset(
        this, {node},
        {{"service", service}, {"watch", watch}, {"wait_ms", wait_ms}, {"with_ids", with_ids}},
        output);
  }

 private:
  // Where TensorFlow rewrites the graph, at the first iterator of a dataset, it would make the
  // client of the data service anew, which asks the dispatcher and waits without a bound. So it
  // gets the dataset that is there.
  absl::Status AddInput(SerializationContext* context, DatasetGraphDefBuilder* builder,
                        tensorflow::Node** node) const {
    if (settings_.wait_ms == 0 || !context->is_graph_rewrite()) {
      return builder->AddInputDataset(context, input(), node);
    }
    input()->Ref();
    Tensor kept(tensorflow::DT_VARIANT, {});
    TF_RETURN_IF_ERROR(
        tensorflow::data::StoreDatasetInVariantTensor(const_cast<DatasetBase*>(input()), &kept));
    TF_RETURN_IF_ERROR(builder->AddPlaceholder(kept, node));
    context->input_list()->emplace_back((*node)->name(), kept);
    return absl::OkStatus();
  }

  class Iterator : public DatasetIterator<WatchedDataset> {
   public:
    explicit Iterator(const Params& params)
        : DatasetIterator<WatchedDataset>(params),
          watch_(Watch::Named(params.dataset->settings().watch)) {}

    // The data service's own client says goodbye to its dispatcher, and waits for the answer
    // without a bound. Where nobody would answer it is cancelled and left behind, for the rest of
    // the process: a few threads that end, and a few kilobytes.
    ~Iterator() override {
      if (!input_ || !cancellation_) return;
      waiter_.reset();
      cancellation_->StartCancel();
      const Settings& settings = this->dataset()->settings();
      const int64_t wait_ms = std::min(settings.wait_ms, kFarewellMs);
      const Answer answer = Ask(settings.service, wait_ms, [] { return false; });
      if (answer != Answer::kSilent && answer != Answer::kUnreachable) return;
      (void)cancellation_.release();
      (void)input_.release();
    }

    bool SymbolicCheckpointCompatible() const override { return true; }

    absl::Status Initialize(IteratorContext* context) override {
      const Settings& settings = this->dataset()->settings();
      if (settings.wait_ms == 0) {
        return dataset()->input()->MakeIterator(context, this, prefix(), &input_);
      }
      // The input gets a manager of ours, so that a wait of it can be cancelled and nothing else.
      CancellationManager* const outer = context->cancellation_manager();
      cancellation_ = outer != nullptr ? std::make_unique<CancellationManager>(outer)
                                       : std::make_unique<CancellationManager>();
      // The data service's own client waits for its dispatcher without a bound.
      const Answer answer = AwaitAnswer(settings.service, settings.wait_ms,
                                        [this] { return cancellation_->IsCancelled(); });
      if (answer != Answer::kYes) {
        return cancellation_->IsCancelled()
                   ? absl::CancelledError("the iterator was cancelled")
                   : NoDispatcher(settings.service, settings.wait_ms, answer);
      }
      IteratorContext::Params params = WithOwnThreads(context);
      params.cancellation_manager = cancellation_.get();
      IteratorContext inner(std::move(params));
      const absl::Status made = dataset()->input()->MakeIterator(&inner, this, prefix(), &input_);
      if (!made.ok()) return Explained(made, settings.service);
      context->MergeCheckpoint(inner.checkpoint());
      waiter_.emplace(std::chrono::milliseconds(settings.wait_ms),
                      [this] { cancellation_->StartCancel(); });
      return absl::OkStatus();
    }

   protected:
    absl::Status GetNextInternal(IteratorContext* context, std::vector<Tensor>* element,
                                 bool* end) override {
      std::lock_guard<std::mutex> lock(mutex_);
      if (waiter_ && waiter_->expired()) return Late();
      const int64_t start_ns = SteadyNs();
      watch_->BeginWait(start_ns);
      if (waiter_) waiter_->Begin(start_ns);
      const absl::Status status = Next(context, element, end);
      if (waiter_) waiter_->End();
      watch_->EndWait(start_ns, SteadyNs());
      if (!status.ok()) {
        if (waiter_ && waiter_->expired()) return Late();
        return waiter_ ? Explained(status, dataset()->settings().service) : status;
      }
      return Count(element, *end);
    }

    absl::Status SaveInternal(SerializationContext* context, IteratorStateWriter* writer) override {
      std::lock_guard<std::mutex> lock(mutex_);
      return SaveInput(context, writer, input_);
    }
    absl::Status RestoreInternal(IteratorContext* context, IteratorStateReader* reader) override {
      std::lock_guard<std::mutex> lock(mutex_);
      return RestoreInput(context, reader, input_);
    }

   private:
    // The threads of the pool in the context are waited for at the end of the iterator's resource;
    // those that TensorFlow starts where there is no pool, by whoever started them.
    static IteratorContext::Params WithOwnThreads(IteratorContext* context) {
      IteratorContext::Params params(context);
      params.thread_factory = nullptr;
      return params;
    }

    absl::Status Next(IteratorContext* context, std::vector<Tensor>* element, bool* end) {
      if (!waiter_) return input_->GetNext(context, element, end);
      IteratorContext inner(WithOwnThreads(context));
      const absl::Status status = input_->GetNext(&inner, element, end);
      context->MergeCheckpoint(inner.checkpoint());
      return status;
    }

    absl::Status Late() const {
      const Settings& settings = dataset()->settings();
      return NoElement(settings.service, settings.wait_ms, ServiceNote(settings.service));
    }

    absl::Status Count(std::vector<Tensor>* element, bool end) {
      // Not before the first element: some iterators are made and never read.
      if (pass_ == nullptr) pass_ = watch_->BeginPass();
      if (end) {
        if (!ended_) watch_->EndPass(pass_);
        ended_ = true;
        return absl::OkStatus();
      }
      if (!dataset()->settings().with_ids) {
        watch_->AddElement(pass_.get(), nullptr, 0);
        return absl::OkStatus();
      }
      const auto ids = element->front().flat<int64_t>();
      watch_->AddElement(pass_.get(), ids.data(), ids.size());
      element->erase(element->begin());
      return absl::OkStatus();
    }

    const std::shared_ptr<Watch> watch_;
    std::mutex mutex_;  // one wait at a time
    std::shared_ptr<Watch::Pass> pass_;
    bool ended_ = false;
    // In this order: the waiter uses the manager, and so does the input to its last breath.
    std::unique_ptr<CancellationManager> cancellation_;
    std::unique_ptr<IteratorBase> input_;
    std::optional<Waiter> waiter_;
  };

  const Settings settings_;
  tensorflow::DataTypeVector dtypes_;
  std::vector<tensorflow::PartialTensorShape> shapes_;
};

class WatchedDatasetKernel : public tensorflow::data::UnaryDatasetOpKernel {
 public:
  explicit WatchedDatasetKernel(tensorflow::OpKernelConstruction* context)
      : UnaryDatasetOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("service", &settings_.service));
    OP_REQUIRES_OK(context, context->GetAttr("watch", &settings_.watch));
    OP_REQUIRES_OK(context, context->GetAttr("wait_ms", &settings_.wait_ms));
    OP_REQUIRES_OK(context, context->GetAttr("with_ids", &settings_.with_ids));
    OP_REQUIRES(context, settings_.wait_ms >= 0,
                absl::InvalidArgumentError("wait_ms is " + std::to_string(settings_.wait_ms) +
                                           "; expected 0 or more."));
  }

 protected:
  void MakeDataset(tensorflow::OpKernelContext* context, DatasetBase* input,
                   DatasetBase** output) override {
    const bool has_ids = input->output_dtypes().front() == tensorflow::DT_INT64;
    OP_REQUIRES(context, !settings_.with_ids || has_ids,
                absl::InvalidArgumentError("the element ids do not have dtype int64."));
    *output = new WatchedDataset(context, input, settings_);
  }

 private:
  Settings settings_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistWatchedDataset").Device(tensorflow::DEVICE_CPU),
                        WatchedDatasetKernel);

}  // namespace
}  // namespace tfdist
