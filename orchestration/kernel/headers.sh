#!/bin/sh
# Between make and gcc, for a build of the virtual-time kernel: see headers.py.
here=${0%/*}
case " $* " in
*" -D__KERNEL__ "*" -c "*.c" ") ;;
*) exec gcc "$@" ;;
esac
case "$*" in
*/kernel/exit.c) (
    # what is read once has nothing of one file: no macros with its name, no list of what it includes
    left_out=
    for word; do
        shift
        case $left_out$word in
        -c | -Wp,* | -D*KBUILD_*=* | */kernel/exit.c) ;;
        -include | -o) left_out=next ;;
        next*) left_out= ;;
        *) set -- "$@" "$word" ;;
        esac
    done
    gcc "$@" -x c-header "$here/headers.h" -o "$here/new.gch" &&
        mv "$here/new.gch" "$here/headers.h.gch"
) 2>/dev/null ;;
esac
[ -f "$here/headers.h.gch" ] || exec gcc "$@"
for file; do :; done
# what a file defines before it includes anything is to change that; but for the form of its messages
before=$(sed -n '
    /^[[:blank:]]*#[[:blank:]]*include/q
    /^[[:blank:]]*#[[:blank:]]*\(define\|undef\)/{/ \(pr\|dev\)_fmt/!p}
' "$file")
[ -z "$before" ] || exec gcc "$@"
macros=$here/macros/$$.h
(
    for word; do
        shift
        case $word in
        -D*KBUILD_*=*)
            word=${word#-D}
            echo "#define ${word%%=*} ${word#*=}" ;;
        *) set -- "$@" "$word" ;;
        esac
    done >"$macros"
    # as a system's header, the file of macros is not among those that make asks for later
    exec gcc -Werror=invalid-pch -include "$here/headers.h" \
        -isystem "$here/macros" -include "$$.h" "$@"
) 2>/dev/null && { rm -f "$macros"; exit; }
rm -f "$macros"
exec gcc "$@"
