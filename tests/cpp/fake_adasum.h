// The kernels of adasum_kernels.h, done on the processor by their definition.
#ifndef TESTS_CPP_FAKE_ADASUM_H_
#define TESTS_CPP_FAKE_ADASUM_H_

#include <functional>
#include <string>

// Whether the source of Adasum's kernels has this one.
bool IsAdasumKernel(const std::string& name);

// What a launch does, later; takes the arguments now.
std::function<void()> AdasumWork(const std::string& name, void** arguments);

#endif  // TESTS_CPP_FAKE_ADASUM_H_
