#!/usr/bin/env bash
# GCC 12.2 (Debian 12's g++-12 12.2.0-14+deb12u1): from -O1 on, calls of a function that does nothing but
# __builtin_prefetch are left out, prefetches and all, unless the function is inlined before. Its return type is void
# and nothing it does counts as an effect. No warning says so; a loop over a hash table loses its look-ahead.
# GCC 11.3 (11.3.0-12) keeps them. An `asm volatile("")` in the function, or always_inline, keeps them in GCC 12, too.
# Seen: prefetches in the code of -O2: g++-11 3, g++-12 0, g++-12 with asm volatile 3, g++-12 with always_inline 3
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq -o APT::Sandbox::User=root download g++-11=11.3.0-12 g++-12=12.2.0-14+deb12u1 \
  libisl23=0.25-1.1 libmpc3=1.3.1-1 libmpfr6=4.2.0-1 libgmp10=2:6.2.1+dfsg1-1.1
for package in *.deb; do dpkg -x "$package" root; done
export LD_LIBRARY_PATH="$folder/root/usr/lib/x86_64-linux-gnu"

cat > ahead.cpp <<'CPP'
struct Lines {
  const long* words;
  unsigned long mask;
#ifdef INLINED
  [[gnu::always_inline]]
#endif
  void ask(unsigned long hash) const {
    for (int hop = 0; hop < 3; ++hop) __builtin_prefetch(words + ((hash + hop * 977) & mask));
#ifdef KEPT
    asm volatile("");
#endif
  }
};

long sum(const Lines& lines, const unsigned long* hashes, unsigned long count) {
  long total = 0;
  for (unsigned long i = 0; i < count; ++i) {
    if (i + 8 < count) lines.ask(hashes[i + 8]);
    total += lines.words[hashes[i] & lines.mask];
  }
  return total;
}
CPP
prefetches() {  # in the code
  "root/usr/lib/gcc/x86_64-linux-gnu/$1/cc1plus" -quiet -O2 "${@:2}" ahead.cpp -o ahead.s
  grep -c prefetch ahead.s || true
}
seen="g++-11 $(prefetches 11), g++-12 $(prefetches 12), g++-12 with asm volatile $(prefetches 12 -DKEPT), g++-12 with always_inline $(prefetches 12 -DINLINED)"
echo "prefetches in the code of -O2: $seen"
[[ "$seen" == "g++-11 3, g++-12 0, g++-12 with asm volatile 3, g++-12 with always_inline 3" ]]
