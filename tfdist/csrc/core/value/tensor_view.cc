#include "core/value/tensor_view.h"

namespace tfdist {

std::string ShapeString(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

}  // namespace tfdist
