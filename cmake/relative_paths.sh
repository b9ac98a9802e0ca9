#!/bin/sh
# relative_paths.sh ROOT RELATIVE COMMAND...: runs a compile command in which paths below ROOT, as whole arguments or
# after -I, begin with RELATIVE instead. CMake only gives absolute paths.
set -eu
root=$1
relative=$2
shift 2
for word; do
    shift
    case $word in
    "$root" | "$root"/*) word=$relative${word#"$root"} ;;
    -I"$root" | -I"$root"/*) word=-I$relative${word#-I"$root"} ;;
    esac
    set -- "$@" "$word"
done
exec "$@"
