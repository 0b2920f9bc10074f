// What leaves the core: its C interface, and the names that adapters and plugins use. These are
// libraries of the same build (TFDIST_BUILD_ID), so C++ may pass between them. The rest is hidden.
#ifndef TFDIST_CORE_VALUE_EXPORT_H_
#define TFDIST_CORE_VALUE_EXPORT_H_

#define TFDIST_API __attribute__((visibility("default")))

#endif  // TFDIST_CORE_VALUE_EXPORT_H_
