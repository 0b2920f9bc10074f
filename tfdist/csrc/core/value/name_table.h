// Tables whose rows stand in the order of an enumeration and begin with a name.
#ifndef TFDIST_CORE_VALUE_NAME_TABLE_H_
#define TFDIST_CORE_VALUE_NAME_TABLE_H_

#include <cstddef>
#include <string>

namespace tfdist {

// Whether the value has a row.
template <typename Enum, typename Row, size_t kRows>
bool HasRow(const Row (&)[kRows], Enum value) {
  return static_cast<size_t>(value) < kRows;
}

// False where no row has this name.
template <typename Enum, typename Row, size_t kRows>
bool FindRow(const Row (&table)[kRows], const std::string& name, Enum* found) {
  for (size_t i = 0; i < kRows; ++i) {
    if (name != table[i].name) continue;
    *found = static_cast<Enum>(i);
    return true;
  }
  return false;
}

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_NAME_TABLE_H_
