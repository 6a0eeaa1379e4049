#include "answers.hpp"

#include <map>
#include <string>

int main(int count, char** arguments) {
  const std::map<std::string, int (*)(int, char**)> parts{
      {"chain_steps", chain_steps}, {"counted_batches", counted_batches},
      {"forecasts", forecasts},     {"growth_rule", growth_rule},
      {"hashes", hashes},           {"requests", requests},
      {"size_ledger", size_ledger}};
  return parts.at(arguments[1])(count - 1, arguments + 1);
}
