#!/usr/bin/env bash
# torch 2.13.0: Inductor puts the nodes of a graph into the comment of each GPU kernel that it generates, with the texts
# that they pass to custom ops as they are. A line break in such a text ends the comment, and the code is no Python.
# The comment is the same for a kernel of the CPU, where it is not used; so it is asked for here.
# Seen: unmatched ')' (comment, line 8), of the line that is left over from a text of two lines
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.utils import get_kernel_metadata
from torch._inductor.virtualized import V

library = torch.library.Library("finding", "DEF")
library.define("said(Tensor keys, str text) -> Tensor")
library.impl("said", lambda keys, text: keys.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("finding::said", lambda keys, text: torch.empty_like(keys))
define_kernel, comments = CppScheduling.define_kernel, []
torch._inductor.config.force_disable_caches = True


def watched(self, source, nodes, *rest):
    comments.append(get_kernel_metadata(nodes, V.graph.wrapper_code)[1])
    return define_kernel(self, source, nodes, *rest)


CppScheduling.define_kernel = watched
for text in ("one line", "first\nsecond"):
    torch._dynamo.reset()
    torch.compile(lambda keys: torch.ops.finding.said(keys + 1, text))(torch.arange(3))
one, two = comments
compile(one, "comment", "exec")
print(two)
try:
    compile(two, "comment", "exec")
except SyntaxError as error:
    print(error)
    assert str(error).startswith("unmatched ')'"), error
else:
    raise SystemExit("the comment of two lines is one")
PY
