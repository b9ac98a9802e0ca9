#!/bin/sh
# with_compiler.sh COMPILER [LAUNCHER...] -- REPLACED ARGUMENTS...: runs a compile command with COMPILER instead
# of CMake's compiler. CMake has one compiler per language; tests use a faster one than the core.
set -eu
compiler=$1
shift
part=launcher
for word; do
    shift
    case $part in
    launcher) if [ "$word" = -- ]; then part=compiler; else set -- "$@" "$word"; fi ;;
    compiler) set -- "$@" "$compiler"; part=arguments ;;
    arguments) set -- "$@" "$word" ;;
    esac
done
exec "$@"
