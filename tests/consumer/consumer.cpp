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
  table->insert({keys, 3, sizeof *keys}, {values, sizeof *values, false}, gpuhash::InsertMode::kAssign, inserted,
                nullptr);

  const std::int64_t asked[] = {4, 5, 3};
  float answers[3];
  bool found[3];
  gpuhash::FindOutput out{};
  out.values = answers;
  out.found = found;
  table->find({asked, 3, sizeof *asked}, out, nullptr);

  std::printf("%d keys\n", static_cast<int>(table->size(nullptr)));
  for (int i = 0; i < 3; ++i)
    std::printf("%d: %s %g\n", static_cast<int>(asked[i]), found[i] ? "yes" : "no", answers[i]);
}
