// What the parts use that compare the library's answers with a model themselves: they end with the first difference.

#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

inline void check(bool holds, const std::string& what,
                  const std::source_location& here = std::source_location::current()) {
  if (!holds) throw std::runtime_error(here.file_name() + (":" + std::to_string(here.line())) + ": " + what);
}

/// Throws unless action() throws an Error.
template <class Error, class Action>
void check_throws(Action action, const std::string& what,
                  const std::source_location& here = std::source_location::current()) {
  try {
    action();
  } catch (const Error&) {
    return;
  }
  check(false, what + ": nothing was thrown", here);
}
