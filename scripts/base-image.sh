#!/bin/sh
# Builds the image trajgym/base:bookworm; see envs/sandbox/images/base/build.sh. With an installed
# package, `trajgym sandboxes prepare` does the same.
exec "$(dirname "$0")/../envs/sandbox/images/base/build.sh" "$@"
