// What a C++ program does with gpuhash: a table on the host, an insertion and a lookup.

#include <cstdint>
#include <cstdio>

#include <gpuhash/platform.hpp>
#include <gpuhash/table.hpp>

int main() {
  gpuhash::TableOptions options;  // of 8-byte keys
  options.value_dtype = gpuhash::DType::kFloat32;
  const auto table = gpuhash::Table::make(options, gpuhash::platform("cpu").make_context(0, nullptr));

  const std::int64_t keys[] = {3, -1, 4};
  const float values[] = {0.5f, 1.5f, 2.5f};
  bool inserted[3];
  gpuhash::Write write;
  write.values = values;
  gpuhash::Change change;
  change.keys = {keys, 3, sizeof *keys};
  change.writes = {&write, 1};
  change.inserted = inserted;
  table->change(change);

  const std::int64_t asked[] = {4, 5, 3};
  float answers[3];
  bool found[3];
  gpuhash::Read read;
  read.values = answers;
  gpuhash::Lookup lookup;
  lookup.keys = {asked, 3, sizeof *asked};
  lookup.reads = {&read, 1};
  lookup.found = found;
  table->look_up(lookup);

  std::printf("%d keys\n", static_cast<int>(table->size(nullptr)));
  for (int i = 0; i < 3; ++i)
    std::printf("%d: %s %g\n", static_cast<int>(asked[i]), found[i] ? "yes" : "no", answers[i]);
}
