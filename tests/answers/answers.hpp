// One program that answers for parts of the library, which no call of the package can ask alone: `answers PART ...`.
// A part's file says what its arguments and lines are.

#pragma once

int chain_steps(int count, char** arguments);
int counted_batches(int count, char** arguments);
int forecasts(int count, char** arguments);
int growth_rule(int count, char** arguments);
int hashes(int count, char** arguments);
int requests(int count, char** arguments);
int size_ledger(int count, char** arguments);
