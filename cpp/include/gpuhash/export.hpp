#pragma once

/// Visible outside libgpuhash, which is built with hidden visibility.
#define GPUHASH_API __attribute__((visibility("default")))
