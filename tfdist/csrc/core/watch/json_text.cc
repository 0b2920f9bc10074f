#include "core/watch/json_text.h"

#include <cstdio>

namespace tfdist {
namespace {

size_t BytesBy(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

}  // namespace

size_t CharacterBytes(const std::string& text, size_t begin) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[begin + i]); };
  const size_t bytes = BytesBy(byte(0));
  if (begin + bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Too long for what they say, halves of a pair, and beyond the last character.
  const bool wrong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) >= 0xa0) ||
                     (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90);
  return wrong ? 0 : bytes;
}

std::string JsonText(const std::string& text) {
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(text, i);
    if (bytes == 0) {
      quoted += '?';
      ++i;
      continue;
    }
    const char one = text[i];
    if (bytes == 1 && static_cast<unsigned char>(one) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(one));
      quoted += escape;
    } else {
      if (one == '"' || one == '\\') quoted += '\\';
      quoted.append(text, i, bytes);
    }
    i += bytes;
  }
  return quoted + '"';
}

}  // namespace tfdist
