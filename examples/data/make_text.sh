#!/bin/sh
# Prints kjv.txt: ten books of the King James Bible, one verse a line, as Debian's bible-kjv has
# them (apt-get install bible-kjv). The file is kept in the repository; this is how it was made.
set -eu
bible -f gen1:1-rev22:21 | grep -E '^(Ge|Job|Psa|Prv|Isa|Mat|Luke|Acts|Rom|Rev)[0-9]+:[0-9]+ '
