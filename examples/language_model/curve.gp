# The loss curve as SVG: gnuplot -c curve.gp CURVE.csv PICTURE.svg UNIGRAM_ENTROPY
csv = ARG1
svg = ARG2
unigram = ARG3 + 0
set terminal svg size 860,480 font "sans,13" background rgb "white"
set output svg
set datafile separator ","
set datafile missing ""
set key below Left reverse samplen 2
set grid ytics lc rgb "#dddddd"
set border 3
set tics nomirror
set xlabel "words seen"
set ylabel "loss [nats per word]"
set format x "%.0s%c"
set yrange [*:*]
average = NaN
smoothed(loss) = (average = average == average ? 0.9 * average + 0.1 * loss : loss)
plot csv using 2:4 every ::1 with lines lw 1 lc rgb "#b9d4ee" title "training, each step", \
     csv using 2:(smoothed($4)) every ::1 with lines lw 2.5 lc rgb "#1f5fa8" title "training, moving average", \
     csv using 2:6 every ::1 with linespoints lw 2 pt 7 ps 0.6 lc rgb "#d1651c" title "held out", \
     unigram with lines lw 2 dt 2 lc rgb "#555555" title sprintf("held-out unigram entropy %.2f", unigram)
