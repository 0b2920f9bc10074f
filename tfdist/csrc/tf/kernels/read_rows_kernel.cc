// The kernel of TfdistReadRows: asynchronous, so that no thread of TensorFlow waits for the reader.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/row_reader.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tf/conversion.h"

namespace tfdist {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

void FillStrings(const char* bytes, const int64_t* ends, Tensor* tensor) {
  auto strings = tensor->flat<tensorflow::tstring>();
  for (int64_t i = 0; i < strings.size(); ++i) {
    strings(i).assign(bytes + ends[i], static_cast<size_t>(ends[i + 1] - ends[i]));
  }
}

Status Missing(int column) {
  return Status(StatusCode::kInternal,
                "the reader returned no column " + std::to_string(column) + ".");
}

// Owns the result until it is handed over, because the reader may still write when nobody waits.
class TensorRead : public RowRead, public std::enable_shared_from_this<TensorRead> {
 public:
  TensorRead(std::string request, const std::vector<DataType>& dtypes, OpKernelContext* context,
             AsyncOpKernel::DoneCallback done)
      : request_(std::move(request)),
        dtypes_(dtypes),
        columns_(dtypes.size(), Tensor(tensorflow::DT_INVALID)),
        context_(context),
        done_(std::move(done)),
        manager_(context->cancellation_manager()) {}

  // False where it is cancelled already; then nothing else may be called.
  bool ListenForCancellation() {
    if (manager_ == nullptr) return true;
    token_ = manager_->get_cancellation_token();
    return manager_->RegisterCallback(token_, [self = shared_from_this()] { self->Cancel(); });
  }

  const std::string& request() const override { return request_; }
  bool wanted() const override { return !over_; }

  Status Give(int column, const Column& value) override {
    if (column < 0 || column >= static_cast<int>(dtypes_.size())) {
      return Status(StatusCode::kInvalidArgument, "there is no column " + std::to_string(column));
    }
    TensorShape shape;
    TFDIST_RETURN_IF_ERROR(FromTensorFlow(TensorShape::BuildTensorShape(value.shape, &shape)));
    Tensor tensor(dtypes_[column], shape);
    const bool strings = dtypes_[column] == tensorflow::DT_STRING;
    if (strings != (value.ends != nullptr) ||
        (!strings && value.bytes != static_cast<int64_t>(tensor.TotalBytes()))) {
      return Status(StatusCode::kInvalidArgument,
                    "column " + std::to_string(column) + " has " + std::to_string(value.bytes) +
                        " bytes, which do not match " + DataTypeString(dtypes_[column]) +
                        " of shape " + shape.DebugString());
    }
    if (strings) {
      FillStrings(static_cast<const char*>(value.values), value.ends, &tensor);
    } else if (value.bytes > 0) {
      std::memcpy(tensor.data(), value.values, static_cast<size_t>(value.bytes));
    }
    columns_[column] = std::move(tensor);
    return Status::Ok();
  }

  void Fail(const Status& status) override {
    if (status_.ok()) status_ = status;
  }

  void Finish() override {
    if (over_.exchange(true)) return;  // cancelled
    if (manager_ != nullptr) manager_->DeregisterCallback(token_);
    for (size_t i = 0; status_.ok() && i < columns_.size(); ++i) {
      if (columns_[i].dtype() != dtypes_[i]) Fail(Missing(static_cast<int>(i)));
    }
    Tell(ToTensorFlow(status_));
  }

 private:
  // The step's end destroys the manager that calls this, and would wait for this call to return: so
  // another thread ends the step.
  void Cancel() {
    if (over_.exchange(true)) return;
    tensorflow::Env::Default()->SchedClosure([self = shared_from_this()] {
      self->Tell(absl::CancelledError("the rows are not wanted any more."));
    });
  }

  void Tell(const absl::Status& status) {
    if (status.ok()) {
      for (size_t i = 0; i < columns_.size(); ++i) {
        context_->set_output(static_cast<int>(i), columns_[i]);
      }
    } else {
      context_->SetStatus(status);
    }
    done_();
  }

  const std::string request_;
  const std::vector<DataType> dtypes_;
  std::vector<Tensor> columns_;
  Status status_;
  OpKernelContext* const context_;  // until `done_` is called
  const AsyncOpKernel::DoneCallback done_;
  CancellationManager* const manager_;
  tensorflow::CancellationToken token_ = CancellationManager::kInvalidToken;
  std::atomic<bool> over_{false};
};

class ReadRowsKernel : public AsyncOpKernel {
 public:
  explicit ReadRowsKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtypes", &dtypes_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::string request;
    const auto parts = context->input(0).flat<tensorflow::tstring>();
    for (int64_t i = 0; i < parts.size(); ++i) {
      request.append(parts(i).data(), parts(i).size());
      request.push_back('\0');
    }
    auto read = std::make_shared<TensorRead>(std::move(request), dtypes_, context, done);
    OP_REQUIRES_ASYNC(context, read->ListenForCancellation(),
                      absl::CancelledError("the rows are not wanted any more."), done);
    RowReader::OfProcess().Submit(std::move(read));
  }

 private:
  std::vector<DataType> dtypes_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistReadRows").Device(tensorflow::DEVICE_CPU), ReadRowsKernel);

}  // namespace
}  // namespace tfdist
