// Runs a model that AOTInductor compiled, with a table in it, where there is no Python: run_exported OPS PACKAGE
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include <ATen/ops/arange.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <gpuhash/platform.hpp>
#include <gpuhash/registry.hpp>

int main(int, char** arguments) {
  if (dlopen(arguments[1], RTLD_NOW) == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;

  gpuhash::TableOptions options;
  options.value_dtype = gpuhash::DType::kFloat32;
  options.value_shape = {2};
  const auto table = gpuhash::Table::make(options, gpuhash::platform("cpu").make_context(0, nullptr));
  const std::vector<std::int64_t> keys = {0, 1, 2};
  const std::vector<float> values = {10, 11, 20, 21, 30, 31};
  const gpuhash::Write write{.values = values.data()};
  table->change({.keys = {keys.data(), 3, 8}, .writes = {&write, 1}});

  torch::inductor::AOTIModelPackageLoader model(arguments[2]);
  const auto run = [&] {
    std::vector<at::Tensor> inputs = {at::arange(1, 5, at::kLong)};
    const at::Tensor found = model.run(inputs)[0].contiguous();
    for (std::int64_t i = 0; i < found.numel(); ++i) std::printf("%g ", found.const_data_ptr<float>()[i]);
    std::printf("of %ld keys\n", static_cast<long>(table->size(nullptr)));
  };
  try {
    run();  // before the table has its name
    return 1;
  } catch (const std::exception&) {
    std::puts("no table");
  }
  gpuhash::registry::add("exported", table);
  run();
  run();
  return 0;
}
