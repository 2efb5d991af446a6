#!/bin/sh
# valgrind.sh VALGRIND COMMAND...: runs a compiled test under valgrind, and a script as it is.
set -eu
valgrind=$1
shift
case ${1##*/} in
python* | *.py | *.sh | sh) exec "$@" ;;
esac
exec "$valgrind" --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect \
    --num-callers=30 "$@"
