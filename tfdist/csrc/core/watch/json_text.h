// Text as JSON has it. Pure.
#ifndef TFDIST_CORE_WATCH_JSON_TEXT_H_
#define TFDIST_CORE_WATCH_JSON_TEXT_H_

#include <string>

namespace tfdist {

// With its quotes. What is no UTF-8 becomes question marks, so that every reader takes it.
std::string JsonText(const std::string& text);

// The bytes that begin at `begin` and are one character in UTF-8; 0 where there is none.
size_t CharacterBytes(const std::string& text, size_t begin);

}  // namespace tfdist

#endif  // TFDIST_CORE_WATCH_JSON_TEXT_H_
