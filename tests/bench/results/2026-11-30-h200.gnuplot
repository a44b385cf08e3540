# gnuplot 2026-11-30-h200.gnuplot: time against memory, the sweeps of 2026-11-30-h200.jsonl
set terminal svg size 800,500 dynamic background rgb 'white'
set output '2026-11-30-h200.svg'
set title 'forward and backward of 8192 rows, bf16, float32 dW, H200; 1024, 2048, 4096 rows a chunk'
set xlabel 'workspace, MiB'
set ylabel 'milliseconds'
set logscale x 2
set xrange [256:1400]
set yrange [0:48]
set key outside below
set grid
# MiB, pass, its three products alone
$one_4096 << EOD
282.7 42.76 40.89
533.3 41.17 39.21
1034.5 39.25 38.76
EOD
$two_4096 << EOD
314.8 22.88 21.72
597.6 21.33 20.57
1163.2 20.93 19.50
EOD
$one_2048 << EOD
328.2 26.64 24.25
624.3 25.53 22.75
1216.5 24.65 22.42
EOD
plot $one_4096 using 1:2 with linespoints linetype 1 pointtype 7 title '4096 x 128256, one GPU', $one_4096 using 1:3 with lines linetype 1 dashtype 2 title 'its products alone', \
     $two_4096 using 1:2 with linespoints linetype 2 pointtype 7 title '4096 x 128256, two GPUs', $two_4096 using 1:3 with lines linetype 2 dashtype 2 title 'its products alone', \
     $one_2048 using 1:2 with linespoints linetype 3 pointtype 7 title '2048 x 151552, one GPU', $one_2048 using 1:3 with lines linetype 3 dashtype 2 title 'its products alone'
